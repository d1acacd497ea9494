"""Structured logs: one JSON object a line, or colours for a person at a terminal."""

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
    """Send structlog and the standard library's logs, Temporal's included, to standard error in one format.

    `redact` takes secrets out of each line as it is written, whatever field, exception or library they come from.
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
    """Temporal's own lines have the workflow's id in a field of theirs: a run is found by one name in all lines."""
    theirs = line.get("temporal_workflow") or line.get("temporal_activity")
    if isinstance(theirs, dict):
        line.setdefault("run_id", theirs.get("workflow_id"))
    return line


def _redacting(redact: Callable[[str], str]) -> structlog.types.Processor:
    """The last step: what it gets is the whole line, so nothing passes it in a field that nobody thought of."""

    def process(_logger: Any, _method: str, line: Any) -> Any:
        return redact(line)

    return process
