"""Exit codes of all commands: 0 completed, 1 failed, 2 usage, 3 aborted, 4 limit or budget, 5 no server or worker.

Only `run`, `watch` and `result` use codes 1, 3 and 4 to report how a run ended. `permissions test` uses 1 if a verdict
is not the expected one, and `audit verify` if the log isn't intact. `eval` uses 1 if too few runs pass, and 4 if its
total budget doesn't cover all of them. In addition, every command exits with code 1 after an internal error.
"""

import atexit
import os
import signal
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
CUT_OFF: Final = 128 + signal.SIGPIPE
"""The reader of the command's output has closed the pipe, as `head` does. Shells report the same for other programs."""


class Unreachable(LoomError):
    """No server or no worker is responding."""


def code_of(error: BaseException) -> int:
    """Return the exit code for a command that ended with this error."""
    match error:
        case BadRequest() | RunNotFoundError() | RunExistsError() | RefusedError():
            return USAGE
        case StackError() | Unreachable() | UnreachableError():
            return UNREACHABLE
        case _:
            return UNREACHABLE if _no_server(error) else FAILED


def leave(code: int) -> NoReturn:
    """Exit the process. If Temporal's SDK is loaded, skip the interpreter's shutdown.

    The SDK's threads may call into the interpreter during shutdown. In a test with 40 plain clients, two crashed with a
    segmentation fault or an abort after they had finished their work.
    """
    if "temporalio.bridge" not in sys.modules:
        sys.exit(code)
    atexit._run_exitfuncs()  # noqa: SLF001 - `os._exit` doesn't run these
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            code = code or CUT_OFF
        except OSError:  # such as a full disk
            code = code or FAILED
    os._exit(code)


def _no_server(error: BaseException) -> bool:
    """Return whether Temporal's SDK raised the error because no server is listening.

    This function doesn't import the SDK. If the SDK raised the error, its module is already loaded.
    """
    service = sys.modules.get("temporalio.service")
    if service is None:
        return False
    if isinstance(error, service.RPCError):
        return error.status in {service.RPCStatusCode.UNAVAILABLE, service.RPCStatusCode.DEADLINE_EXCEEDED}
    return isinstance(error, RuntimeError) and "Failed client connect" in str(error)
