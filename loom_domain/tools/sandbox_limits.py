"""What one command in the sandbox may use up."""

from dataclasses import dataclass
from typing import Final

_GIB: Final = 1024**3


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds for one command with all that it starts; a field says so where they are for each process."""

    memory: int = 4 * _GIB
    """Bytes in use, what lies in /tmp, /var/tmp and /dev/shm included; also what a single process may reserve."""
    processes: int = 512
    """Processes and threads at a time."""
    cpu: float = 2.0
    """Seconds of processor time per second of the command's timeout."""
    file_size: int = 2 * _GIB
    """Bytes of any file that is written."""
    disk: int = 8 * _GIB
    """Bytes written to the workspace's disk."""
    temporary: int = _GIB
    """Bytes of /tmp, and as many of /var/tmp and of /dev/shm; they are new and empty for each command."""
    open_files: int = 4096
    """Open files of each process."""
