"""Tell a missing file from one that can't be opened, because this process has too many open files."""

import errno

from loom.domain.core.errors import ToolExecutionError


def refuse_if_exhausted(error: OSError, path: str) -> None:
    """Raise ToolExecutionError if the process or the system can't open more files. Otherwise, what must be protected at
    this path or below it would be taken for missing.
    """
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise ToolExecutionError(
            f"{path} can't be protected ({error.strerror}): nothing was run. Try again later, or raise the worker's"
            " limit of open files (`ulimit -n`)"
        ) from None
