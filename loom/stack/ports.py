"""Choose a service's port: its previous port, its usual port or, if both are taken, any free port."""

import socket
from collections.abc import Collection

USUAL = {"temporal": 7233, "ui": 8233, "postgres": 5433, "redis": 6379, "metrics": 9091, "serve": 8000}


def is_free(port: int) -> bool:
    """Return whether a server can listen on this port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def choose(name: str, remembered: int | None, taken: Collection[int]) -> int:
    """Return a free port for the service. Ports in `taken` are reserved for services that aren't listening yet."""
    for port in (remembered, USUAL[name]):
        if port is not None and port not in taken and is_free(port):
            return port
    found = any_free()
    while found in taken:
        found = any_free()
    return found


def any_free() -> int:
    """Return any free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
