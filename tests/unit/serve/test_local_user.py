"""Who may use a service without tokens: whoever is on its machine, and no other site in their browser."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from loom.composition.settings import Settings
from loom.domain.core.errors import AccessDeniedError, NotAuthenticatedError
from loom.serve.access.callers import Callers
from loom.serve.access.local_user import LocalUser
from loom.serve.server import callers_of

OWN = ("box.lan", "proxy.example")
LABELS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
SITES = st.lists(LABELS, min_size=1, max_size=4).map(".".join) | st.from_regex(
    r"(localhost|127\.0\.0\.1|\[::1\]|box\.lan|10\.0\.0\.7)[.@][a-z]{1,5}\.example", fullmatch=True
)
PORTS = st.sampled_from(["", ":8000", ":0", ":x"])


def user() -> LocalUser:
    return LocalUser("ann", hosts=("box.lan",), origins=("https://proxy.example",))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.5", "[::1]", "10.0.0.7", "[fd00::7]", *OWN])
@pytest.mark.parametrize("port", ["", ":8000"])
async def test_it_answers_to_its_own_names_and_to_addresses(host: str, port: str) -> None:
    assert (await user().caller(Headers({"host": host + port}))).name == "ann"


def is_address(site: str) -> bool:
    return all(part.isdecimal() for part in site.split("."))


@given(site=SITES.filter(lambda site: site not in (*OWN, "localhost") and not is_address(site)), port=PORTS)
async def test_it_answers_to_no_name_that_another_site_may_have_for_this_machine(site: str, port: str) -> None:
    with pytest.raises(AccessDeniedError):
        await user().caller(Headers({"host": site + port}))


def callers(*, is_local: bool, insecure: bool = False, **settings: Any) -> Callers:
    chosen = Settings(home=Path("/nowhere"), **settings)
    service: Any = SimpleNamespace(settings=chosen, tokens=None)
    return callers_of(service, is_local=is_local, insecure=insecure)


@pytest.mark.parametrize(
    ("is_open", "how"),
    [
        (True, {"is_local": True}),
        (False, {"is_local": False}),
        (True, {"is_local": False, "insecure": True}),
        (False, {"is_local": True, "require_signed": "on"}),
        (False, {"is_local": True, "temporal_address": "unix:/home/ann/.loom/temporal.sock"}),
        (True, {"is_local": True, "insecure": True, "require_signed": "on"}),
    ],
)
async def test_it_is_open_only_where_others_could_start_runs_without_it(is_open: bool, how: dict[str, Any]) -> None:
    asking = callers(**how).caller(Headers({"host": "localhost:8000"}))
    if is_open:
        assert (await asking).tenant is None
        return
    with pytest.raises(NotAuthenticatedError):
        await asking
