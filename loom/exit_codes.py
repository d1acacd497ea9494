"""Exit codes of every command: 0 completed, 1 failed, 2 usage, 3 aborted, 4 limit or budget, 5 no server or worker.

1, 3 and 4 report how a run ended, so only `run`, `watch` and `result` use them; a bug ends with 1 as well.
"""

import atexit
import os
import sys
from typing import Final, NoReturn

from loom.domain.core.errors import (
    BadRequest,
    LoomError,
    RefusedError,
    RunExistsError,
    RunNotFoundError,
    UnreachableError,
)
from loom.stack.errors import StackError

COMPLETED: Final = 0
FAILED: Final = 1
USAGE: Final = 2
ABORTED: Final = 3
LIMIT: Final = 4
UNREACHABLE: Final = 5


class Unreachable(LoomError):
    """No server or no worker answers."""


def code_of(error: BaseException) -> int:
    """The exit code of a command that ended with this error."""
    match error:
        case BadRequest() | RunNotFoundError() | RunExistsError() | RefusedError():
            return USAGE
        case StackError() | Unreachable() | UnreachableError():
            return UNREACHABLE
        case _:
            return UNREACHABLE if _no_server(error) else FAILED


def leave(code: int) -> NoReturn:
    """Exit the process, without the interpreter's own shutdown once Temporal's SDK is loaded.

    The SDK's threads may call into an interpreter that is shutting down: of 40 plain clients, two ended with a
    segmentation fault or an abort after their work was done.
    """
    if "temporalio.bridge" not in sys.modules:
        sys.exit(code)
    atexit._run_exitfuncs()  # noqa: SLF001 - what `os._exit` leaves out
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # the reader has gone
            code = code or FAILED
    os._exit(code)


def _no_server(error: BaseException) -> bool:
    """Whether Temporal's SDK reports that no server listens; when it raised, its module is loaded."""
    service = sys.modules.get("temporalio.service")
    if service is None:
        return False
    if isinstance(error, service.RPCError):
        return error.status in {service.RPCStatusCode.UNAVAILABLE, service.RPCStatusCode.DEADLINE_EXCEEDED}
    return isinstance(error, RuntimeError) and "Failed client connect" in str(error)
