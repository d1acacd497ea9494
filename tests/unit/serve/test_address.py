"""The address at which the service listens."""

import socket
from pathlib import Path

import pytest

from loom.exit_codes import USAGE
from loom.serve.server import address_of, bound
from tests.commands import commands_in


def test_a_second_service_at_the_same_address_says_that_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bound("127.0.0.1", 0) as first, commands_in(tmp_path, monkeypatch) as loom:
        port = first.getsockname()[1]
        done = loom("serve", "--port", str(port))
    assert done.code == USAGE
    assert f"cannot listen at 127.0.0.1:{port} (Address already in use); choose others" in done.err


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_an_address_of_ipv6_is_in_brackets() -> None:
    with bound("::1", 0) as listening:
        assert address_of(listening) == f"http://[::1]:{listening.getsockname()[1]}"
