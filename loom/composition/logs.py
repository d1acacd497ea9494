"""Structured logs: one JSON object per line, or colors for a person at a terminal."""

import logging
import sys
from collections.abc import Callable
from typing import Any, Literal

import structlog


def configure_logs(
    level: str = "INFO",
    style: Literal["json", "console"] = "json",
    redact: Callable[[str], str] = str,
) -> None:
    """Send the logs of structlog and the standard library, including Temporal's, to standard error in one format.

    `redact` removes secrets from each line as it is written, whatever field, exception or library they come from.
    """
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: structlog.types.Processor = (
        structlog.processors.JSONRenderer() if style == "json" else structlog.dev.ConsoleRenderer()
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level)),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
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
    # It logs a traceback for every line of a server's that is no message; what matters of it is ours to say.
    logging.getLogger("mcp.client.stdio").setLevel(logging.CRITICAL)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def _with_run_id(_logger: Any, _method: str, line: structlog.types.EventDict) -> structlog.types.EventDict:
    """Temporal's own lines have the workflow's id in another field. All lines of a run get the same one."""
    theirs = line.get("temporal_workflow") or line.get("temporal_activity")
    if isinstance(theirs, dict):
        line.setdefault("run_id", theirs.get("workflow_id"))
    return line


def _redacting(redact: Callable[[str], str]) -> structlog.types.Processor:
    """The last processor: it receives the whole line, so no field can bypass it."""

    def process(_logger: Any, _method: str, line: Any) -> Any:
        return redact(line)

    return process
