"""A chat's run id: one for each tenant, user and session, whatever their names."""

import re

from hypothesis import given
from hypothesis import strategies as st

from loom.chat_ids import LONGEST_OWNED, chat_run_id, escaped, is_chat, user_of_chat
from loom.domain.core.tenants import TENANT_NAME, USER_ID, Owner

Chat = tuple[Owner, str]

TENANTS = st.just("") | st.from_regex(TENANT_NAME, fullmatch=True)
# Names of the characters that separate and escape, which give equal ids if anything is mistaken, and any others.
LOOKALIKES = st.lists(st.sampled_from(["a", ":", "%", "/", "%3A", "%253A", "%23", "-", "日"]), max_size=6).map("".join)
LONG = st.builds(lambda first, last: first + "日" * 180 + last, LOOKALIKES, LOOKALIKES)
USERS = LOOKALIKES | LONG | st.from_regex(USER_ID, fullmatch=True)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
SESSIONS = (LOOKALIKES | LONG | ANY_TEXT).map(str.strip).filter(bool)
OWNERS = st.builds(lambda tenant, user: Owner(tenant=tenant, user_id=user), TENANTS, USERS)
SEPARATORS = st.sampled_from(["", ":", "%3A", "%253A", "/", "-"])


@given(chats=st.sets(st.tuples(OWNERS, SESSIONS), max_size=5))
def test_different_owners_and_sessions_have_different_ids(chats: set[Chat]) -> None:
    assert len({chat_run_id(session, owner) for owner, session in chats}) == len(chats)


@given(tenant=TENANTS, user=USERS, session=SESSIONS, separator=SEPARATORS)
def test_names_that_are_the_same_in_a_row_have_different_ids(
    tenant: str, user: str, session: str, separator: str
) -> None:
    chats = {
        (Owner(tenant=tenant, user_id=user), session),
        (Owner(tenant=tenant), f"{user}{separator}{session}".strip()),
        (Owner(tenant=tenant, user_id=f"{user}{separator}{session}"), session),
        (Owner(tenant=tenant, user_id=user), f"{session}{separator}{session}"),
        (Owner(user_id=tenant), f"{user}{separator}{session}".strip()),
        (Owner(user_id=f"{tenant}{separator}{user}"), session),
        (Owner(), f"{tenant}{separator}{user}{separator}{session}".strip()),
    }
    assert len({chat_run_id(session, owner) for owner, session in chats}) == len(chats)


@given(owner=OWNERS.filter(lambda owner: owner != Owner()), session=SESSIONS)
def test_the_id_of_an_owner_is_bounded_and_no_id_that_others_choose(owner: Owner, session: str) -> None:
    run_id = chat_run_id(session, owner)

    assert len(run_id.encode()) <= LONGEST_OWNED
    assert "/" not in run_id
    assert not re.match(f"{TENANT_NAME.rstrip('$')}:", run_id)  # the ids that tenants choose over HTTP
    # No session without an owner gives this id, because it has only these two escapes.
    assert "%" in re.sub("%25|%2F", "", run_id)


@given(session=SESSIONS)
def test_without_an_owner_the_id_is_the_session(session: str) -> None:
    run_id = chat_run_id(f" {session} ", Owner())

    assert "/" not in run_id
    assert run_id.removeprefix("chat-").replace("%2F", "/").replace("%25", "%") == session


@given(owner=OWNERS, session=SESSIONS, message_id=LOOKALIKES)
def test_an_id_tells_a_chat_from_an_answer_beside_it_and_whose_it_is(
    owner: Owner, session: str, message_id: str
) -> None:
    run_id = chat_run_id(session, owner)

    assert is_chat(run_id, session)
    assert not is_chat(f"{run_id}-{escaped(message_id)}", session)
    assert user_of_chat(run_id) in (owner.user_id, None)
    assert user_of_chat(run_id) is not None or len(run_id.encode()) > LONGEST_OWNED - 4


def test_ids_can_be_read() -> None:
    assert chat_run_id("a/b 100%", Owner()) == "chat-a%2Fb 100%25"
    assert chat_run_id("monday", Owner(tenant="acme", user_id="ann@acme.org")) == "chat-acme%3Aann@acme.org%3Amonday"
    assert chat_run_id("monday", Owner(tenant="acme")) == "chat-acme%3A%3Amonday"
    assert chat_run_id("monday", Owner(user_id="a:b")) == "chat-%3Aa:b%3Amonday"
    long = chat_run_id("m" * 300, Owner(tenant="acme", user_id="ann"))
    assert long == f"chat-acme%3Aann%3A{'m' * 97}%239ec1a2458daab522197dbf3286de9ec1"
