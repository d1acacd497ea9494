"""A Loom worker with a tool whose effects can be counted: `credit` books under its idempotency key, as a bank would."""

import asyncio
import os
import sqlite3
from contextlib import closing
from datetime import timedelta
from unittest.mock import patch

import structlog

from loom import LoomApp, worker
from loom.activities.ports import Tool, ToolContext
from loom.activities.toolbox.function_tool import Arguments, FunctionTool, tool_spec
from loom.composition.load_settings import load_settings
from loom.composition.logs import configure_logs
from loom.composition.settings import Settings
from loom.domain.core.tool_calls import Effect
from loom.workflows import options


class Credit(Arguments):
    """Arguments of credit."""

    call: str
    before: float
    after: float


def credit_tool() -> Tool:
    """An idempotent tool: the same key a second time changes nothing."""

    async def credit(given: Credit, context: ToolContext) -> str:
        with closing(sqlite3.connect(context.workspace / "account.sqlite")) as account:
            _do(account, "INSERT INTO begun VALUES (?, ?)", context.idempotency_key, given.call)
            await asyncio.sleep(given.before)
            _do(account, "INSERT OR IGNORE INTO applied VALUES (?, ?)", context.idempotency_key, given.call)
            await asyncio.sleep(given.after)
        return f"finished {given.call}"

    spec = tool_spec("credit", "Book something.", Credit, effect=Effect.IDEMPOTENT)
    return FunctionTool(spec=spec, arguments=Credit, function=credit)


def _do(account: sqlite3.Connection, statement: str, *values: str) -> None:
    with account:
        account.execute(statement, values)


async def main() -> None:
    """Work until killed."""
    settings = load_settings()
    configure_logs(settings.log_level, settings.log_format)
    app = LoomApp()
    app.register_tool(credit_tool())
    rest = timedelta(seconds=float(os.environ.get("CHAOS_CHAT_IDLE", options.CHAT_IDLE.total_seconds())))
    with patch.object(options, "CHAT_IDLE", rest):
        await _work(settings, app)


async def _work(settings: Settings, app: LoomApp) -> None:
    async with worker(settings, app=app):
        structlog.get_logger("loom.worker").info("worker_ready")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
