"""Screenshots of the web page for docs/page.md: `make page-screens`. A scripted model plays an agent."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Browser

from loom.stack.plan import Plan
from loom.stack.up_down import down, up_detached
from loom.testing.harness import Addresses
from loom.testing.model_server import SeenRequest, ToolUse, calls, text
from tests.integration.serve.browser import PHONE, WIDE, browser, opened
from tests.integration.serve.served import Served, served

IMAGES: Final = Path(__file__).parent.parent / "docs" / "images"
SETTINGS: Final = "[server]\nport = 8080\ntimeout = 5\n\n[log]\nlevel = 'debug'\n"
EDIT: Final = {"path": "settings.toml", "old_string": "timeout = 5", "new_string": "timeout = 30\nretries = 3"}
SAID: Final = "The service gives up after 5 seconds, which is less than the database needs. I'll raise the limit.\n"


def model(request: SeenRequest) -> Any:
    """Read the settings, change them, and say so; or ask a question."""
    if "Which" in str(request.messages):
        return calls(ToolUse("ask_user", {"question": "Which region should the report cover: Europe, or all?"}))
    if request.turn == 0:
        return calls(
            ToolUse("read_file", {"path": "settings.toml"}), ToolUse("bash", {"command": "grep -rn timeout ."})
        )
    if request.turn == 1:
        return calls(ToolUse("edit_file", EDIT), text=SAID)
    return text("The timeout is 30 seconds now, with 3 retries.")


async def screens(api: Served, chromium: Browser) -> None:
    """Start runs, and take the pictures."""
    rules = {"edit_file": "ask", "bash": "allow"}
    done = await api.start(
        "Find out why requests time out", run_id="timeouts-1", permissions={"edit_file": "allow", "bash": "allow"}
    )
    await api.result(done)
    (api.loom.workspace / "settings.toml").write_text(SETTINGS)
    asked = await api.start(
        "Requests to the database time out. Find out why, and mend the settings.",
        run_id="timeouts-2",
        permissions=rules,
        budget={"tokens": 20_000},
        max_turns=20,
    )
    await api.asked(asked)
    question = await api.start("Which customers left last month? Write a report.", run_id="report-7")
    await api.loom.until(question, lambda status: bool(status["question"]))
    token = str(api.http.headers["Authorization"]).removeprefix("Bearer ")

    async def picture(name: str, place: str, ready: str, **look: Any) -> None:
        async with opened(chromium, f"{api.url}/#/{place}", token=token, **look) as page:
            await page.locator(ready).first.wait_for()
            await page.locator("#waiting").wait_for()
            await page.evaluate("document.activeElement.blur()")
            await page.screenshot(path=IMAGES / f"page-{name}.png")

    await picture("run", f"runs/{asked}", ".ask .diff", **WIDE)
    await picture("runs", "runs", "tbody tr:nth-child(3)", **WIDE)
    await picture("inbox-dark", "inbox", ".ask:nth-child(2)", color_scheme="dark", **WIDE)
    await picture("phone", f"runs/{asked}", ".ask .diff", **PHONE)
    await picture("phone-inbox", "inbox", ".ask:nth-child(2)", color_scheme="dark", **PHONE)
    for run_id in (asked, question):
        await api.http.post(f"/v1/runs/{run_id}/abort")


async def main() -> None:
    """Start what the page needs."""
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder) / "shop"
        workspace.mkdir()
        (workspace / "settings.toml").write_text(SETTINGS)
        parts = up_detached(Plan(home=Path(folder) / ".loom", worker=None)).parts
        address = {name: part.address or "" for name, part in parts.items()}
        addresses = Addresses(temporal=address["temporal"], database=address["postgres"], redis=address["redis"], ui="")
        try:
            async with (
                served(addresses, workspace, model, replay=False, temporal_ui="http://localhost:8233") as api,
                browser() as chromium,
            ):
                await screens(api, chromium)
        finally:
            down(Path(folder) / ".loom")


if __name__ == "__main__":
    asyncio.run(main())
