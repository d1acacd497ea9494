"""Choose ports: the one that a service had before, else its usual one, else any free one."""

import socket
from collections.abc import Collection

USUAL = {"temporal": 7233, "ui": 8233, "postgres": 5433, "redis": 6379, "metrics": 9091}


def is_free(port: int) -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def choose(name: str, remembered: int | None, taken: Collection[int]) -> int:
    """A free port for the service; those in `taken` are reserved for others that do not listen yet."""
    for port in (remembered, USUAL[name]):
        if port is not None and port not in taken and is_free(port):
            return port
    found = any_free()
    while found in taken:
        found = any_free()
    return found


def any_free() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
