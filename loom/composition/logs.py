"""Write structured logs: one JSON object per line, or text, with colors if a terminal shows them."""

import logging
import os
import sys
from collections.abc import Callable
from typing import Any, Literal

import structlog


def configure_logs(
    level: str = "INFO",
    style: Literal["json", "console"] = "json",
    redact: Callable[[str], str] = str,
) -> None:
    """Send structlog and standard library logs, including Temporal's, to standard error in one format.

    `redact` removes secrets from each line before it is written, including secrets in exceptions and in messages from
    libraries.
    """
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: structlog.types.Processor = (
        structlog.processors.JSONRenderer() if style == "json" else structlog.dev.ConsoleRenderer(colors=_has_colors())
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level)),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    logging.getLogger("loom").setLevel(logging.NOTSET)  # a command may have silenced it
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(level)  # psycopg gives its loggers a level of their own
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder(), _with_run_id],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                last,
                _redacting(redact),
            ],
        )
    )
    # This logger writes a traceback for each line of server output that isn't a message. Loom reports the relevant
    # errors itself.
    logging.getLogger("mcp.client.stdio").setLevel(logging.CRITICAL)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def _has_colors() -> bool:
    """Return whether standard error shows colors and the person wants them."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _with_run_id(_logger: Any, _method: str, line: structlog.types.EventDict) -> structlog.types.EventDict:
    """Copy the Workflow ID from Temporal's log lines to `run_id`, so that all lines of a run share this field."""
    theirs = line.get("temporal_workflow") or line.get("temporal_activity")
    if isinstance(theirs, dict):
        line.setdefault("run_id", theirs.get("workflow_id"))
    return line


def _redacting(redact: Callable[[str], str]) -> structlog.types.Processor:
    """Return the last processor in the chain. It redacts all fields, because it receives the complete line."""

    def process(_logger: Any, _method: str, line: Any) -> Any:
        return redact(line)

    return process
