"""Resource limits of one command in the sandbox."""

from dataclasses import dataclass
from typing import Final

_GIB: Final = 1024**3


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits for one command with all of its processes. Limits per process say so."""

    memory: int = 4 * _GIB
    """Bytes in use, including /tmp, /var/tmp and /dev/shm. A single process cannot reserve more either."""
    processes: int = 512
    """Processes and threads at a time."""
    cpu: float = 2.0
    """Seconds of processor time per second of the command's timeout."""
    file_size: int = 2 * _GIB
    """Bytes of each written file."""
    disk: int = 8 * _GIB
    """Bytes written to the workspace's disk."""
    temporary: int = _GIB
    """Bytes of /tmp, and the same of /var/tmp and /dev/shm, which are new and empty for each command."""
    open_files: int = 4096
    """Open files of each process."""
