"""Logging for commands: errors go to standard error with secrets redacted. `loom worker` sets up its own logs."""

import logging
import os
import sys
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Final

import structlog

from loom.composition.logs import configure_logs

if TYPE_CHECKING:
    from loom.activities.adapters.redaction.mask import SecretMask

IS_VERBOSE: Final[ContextVar[bool]] = ContextVar("is_verbose", default=False)
"""Whether the command line begins with `loom --verbose`."""


def configure(*, debug: bool) -> None:
    """Log errors, or everything if `debug` is true. Warnings are for workers: a command itself says what went wrong."""
    configure_logs("DEBUG" if debug else "ERROR", "console", _redacted)


def silence() -> None:
    """Drop all log lines of Loom, because the command itself reports errors."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    logging.getLogger("loom").setLevel(logging.CRITICAL)


def _redacted(line: str) -> str:
    return _mask().redact(line)


@cache
def _mask() -> "SecretMask":
    """Return the mask. It is built when the first line is logged, because most commands don't log any lines."""
    from loom.activities.adapters.redaction.known_secrets import secrets_of  # noqa: PLC0415
    from loom.activities.adapters.redaction.mask import SecretMask  # noqa: PLC0415

    return SecretMask(secrets_of(os.environ))
