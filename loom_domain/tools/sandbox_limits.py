"""Resource limits for one command in the sandbox."""

from dataclasses import dataclass
from typing import Final

_GIB: Final = 1024**3


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits for one command and all processes that it starts. Limits that apply to each process say so."""

    memory: int = 4 * _GIB
    """Bytes of memory, including files in /tmp, /var/tmp and /dev/shm; also the address space of a single process."""
    processes: int = 512
    """Processes and threads at a time."""
    cpu: float = 2.0
    """Seconds of processor time per second of the command's timeout."""
    file_size: int = 2 * _GIB
    """Bytes of the largest file that may be written."""
    disk: int = 8 * _GIB
    """Bytes written to the workspace's disk."""
    temporary: int = _GIB
    """Bytes of each of /tmp, /var/tmp and /dev/shm, which are new and empty for each command."""
    open_files: int = 4096
    """Open files of each process."""
