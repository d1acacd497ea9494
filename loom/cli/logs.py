"""Logs of the commands: warnings go to standard error with secrets redacted; `loom worker` sets up its own."""

import logging
import os
import sys
from functools import cache

import structlog

from loom.activities.adapters.redaction.known_secrets import secrets_of
from loom.activities.adapters.redaction.mask import SecretMask
from loom.composition.logs import configure_logs


def configure(*, debug: bool) -> None:
    """Log warnings, or everything."""
    configure_logs("DEBUG" if debug else "WARNING", "console", _redacted)


def silence() -> None:
    """Drop log lines: the command itself reports what went wrong."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _redacted(line: str) -> str:
    return _mask().redact(line)


@cache
def _mask() -> SecretMask:
    """Built with the first log line, since most commands write none."""
    return SecretMask(secrets_of(os.environ))
