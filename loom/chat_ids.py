"""The ids of the runs that answer chats, which say whose chat it is."""

import re
from hashlib import sha256
from typing import Final

from loom.domain.core.tenants import Owner

CHAT: Final = "chat-"
"""The prefix of a chat's run id."""
LONGEST_OWNED: Final = 150
"""The maximum length in bytes of the run id of a chat that has an owner. Temporal servers on Postgres or MySQL store at
most 255 characters, and the ids of sub-agents and of runs beside the chat begin with the chat's id.
"""
DIGEST_LENGTH: Final = 32
"""The number of hexadecimal digits that stand for the rest of an id that is too long."""
_CUT: Final = re.compile(rf"%23[0-9a-f]{{{DIGEST_LENGTH}}}\Z")


def chat_run_id(session: str, owner: Owner) -> str:
    """Return the id of the run that answers the messages of an owner's session.

    Different owners and sessions have different ids. Without an owner, the id is `chat-SESSION`. With one, it is
    `chat-TENANT%3AUSER%3ASESSION`, where the tenant or the user may be empty. Only the separators are `%3A`, because
    each `%` in a name is escaped. So no session without an owner has such an id, and a `:` in a name stays as it is.
    """
    name = session.strip()
    if owner == Owner():
        return CHAT + escaped(name)
    run_id = CHAT + "%3A".join(escaped(part) for part in (owner.tenant, owner.user_id, name))
    if len(run_id.encode()) <= LONGEST_OWNED:
        return run_id
    # No escaped name contains %23, so that an id with a digest is never the whole id of another chat.
    end = "%23" + sha256(run_id.encode()).hexdigest()[:DIGEST_LENGTH]
    return run_id.encode()[: LONGEST_OWNED - len(end)].decode(errors="ignore") + end


def is_chat(run_id: str, session: str) -> bool:
    """Return whether a run of this session is a chat, and not a run that answers one message beside a chat."""
    return run_id.startswith(CHAT) and (bool(_CUT.search(run_id)) or _names(run_id)[-1] == session)


def user_of_chat(run_id: str) -> str | None:
    """Return the user whose chat it is, or an empty string if it has none. None if the id is too long to tell."""
    return None if _CUT.search(run_id) else "".join(_names(run_id)[1:-1])


def escaped(name: str) -> str:
    """Return a name as a part of a run id. A `/` would make the id look like a sub-agent's."""
    return name.replace("%", "%25").replace("/", "%2F")


def _names(run_id: str) -> list[str]:
    """Return the session in an id that isn't cut, after the tenant and the user if it has an owner."""
    names = run_id.removeprefix(CHAT).split("%3A")
    return [name.replace("%2F", "/").replace("%25", "%") for name in names]
