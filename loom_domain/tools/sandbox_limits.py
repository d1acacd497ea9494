"""Resource limits for a command in the sandbox."""

from dataclasses import dataclass
from typing import Final

_GIB: Final = 1024**3


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits for one command and all of its processes, except where a limit is documented as per process."""

    memory: int = 4 * _GIB
    """Memory in bytes, including /tmp, /var/tmp and /dev/shm. The data segment of each process is limited to the same
    size.
    """
    processes: int = 512
    """The maximum number of concurrent processes and threads."""
    cpu: float = 2.0
    """Seconds of processor time per second of the command's timeout."""
    file_size: int = 2 * _GIB
    """The maximum size, in bytes, of each file that is written."""
    disk: int = 8 * _GIB
    """The maximum number of bytes written to the workspace's disk."""
    temporary: int = _GIB
    """The size of /tmp in bytes. The same limit applies to /var/tmp and to /dev/shm. All three start empty for each
    command.
    """
    open_files: int = 4096
    """The maximum number of open files per process."""
