"""Screenshots of the web page for docs/page.md: `make page-screens`. A scripted model plays an agent."""

import asyncio
import tempfile
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from playwright.async_api import Browser

from loom.domain.core.model_prices import ModelPrice
from loom.stack.plan import Plan
from loom.stack.postgres import admin_address
from loom.stack.up_down import down, up_detached
from loom.testing.harness import Addresses
from loom.testing.model_server import SeenRequest, ToolUse, calls, text
from tests.databases import allow_databases
from tests.integration.serve.browser import PHONE, WIDE, browser, opened
from tests.integration.serve.served import Served, served

PRICES: Final = {"openai:scripted": ModelPrice(input=3.0, output=15.0)}
IMAGES: Final = Path(__file__).parent.parent / "docs" / "images"
SETTINGS: Final = "[server]\nport = 8080\ntimeout = 5\n\n[log]\nlevel = 'debug'\n"
EDIT: Final = {"path": "settings.toml", "old_string": "timeout = 5", "new_string": "timeout = 30\nretries = 3"}
WEEK: Final = """Three changes were released this week:

1. Requests to the database **time out after 30 seconds**, and are retried 3 times.
2. The report groups customers by region.
3. `shop export` writes CSV files.

| release | tests | incidents |
|---|---|---|
| 4.2.0 | 812 | 1 |
| 4.2.1 | 815 | 0 |
"""
NEXT: Final = (
    "Next week:\n\n- the dashboard, see [the plan](https://shop.example/plan)\n- the **migration** of the archive"
)
SAID: Final = "The service gives up after 5 seconds, which is less than the database needs. I'll raise the limit.\n"


def model(request: SeenRequest) -> Any:
    """Read the settings, change them, and say so; or ask a question."""
    said = str(request.messages)
    if "And what is next?" in said:
        return text(NEXT)
    if "What changed this week?" in said:
        return text(WEEK)
    if "Which customers" in said:
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
    chat = await chatted(api)
    token = str(api.http.headers["Authorization"]).removeprefix("Bearer ")

    async def picture(name: str, place: str, ready: str, **look: Any) -> None:
        async with opened(chromium, f"{api.url}/#/runs", token=token, **look) as page:
            await page.route("**/v1/costs*", lambda route: route.fulfill(json=month()))
            await page.evaluate(f"location.hash = '#/{place}'")
            await page.locator(ready).first.wait_for()
            await page.locator("#waiting").wait_for()
            await page.evaluate("document.activeElement.blur()")
            await page.screenshot(path=IMAGES / f"page-{name}.png", scale="css")

    views = {
        "run": (f"runs/{asked}", ".ask .diff"),
        "runs": ("runs", "tbody tr:nth-child(3)"),
        "inbox": ("inbox", ".ask:nth-child(2)"),
        "chat": (f"chats/{chat}", ".said:nth-child(n+5)"),
        "costs": ("costs", ".costs tbody tr"),
    }
    for name, (place, ready) in views.items():
        await picture(name, place, ready, **WIDE)
        await picture(f"{name}-dark", place, ready, color_scheme="dark", **WIDE)
        await picture(f"{name}-phone", place, ready, **PHONE)
    for run_id in (asked, question):
        await api.http.post(f"/v1/runs/{run_id}/abort")


async def chatted(api: Served) -> str:
    """Begin a chat, and return its run's ID."""
    path = "/v1/chats/weekly-report/messages"
    for number, message in enumerate(("What changed this week?", "And what is next?")):
        body = {"text": message, "message_id": f"m{number}", "workspace": str(api.loom.workspace)}
        chat: str = (await api.http.post(path, json=body)).json()["chat"]
        await api.http.get(f"{path}/m{number}", params={"wait": 60})
    return chat


def month() -> Any:
    """Figures of four weeks, since the runs of the pictures are all of today."""
    costs = [1.2, 1.9, 2.4, 2.1, 1.6, 0.2, 0, 1.8, 2.6, 3.4, 2.9, 2.2, 0.3, 0.1, 2.0, 2.8, 5.6, 3.1, 2.5, 0.2, 0]
    names = (str(date(2026, 11, 2) + timedelta(days=number)) for number in range(len(costs)))
    groups: list[dict[str, Any]] = [{"name": "", "cost": 0, "runs": 2, "sub_agents": 0, "unknown": 0, "running": 2}]
    for name, cost in zip(names, costs, strict=True):
        runs, sub_agents = round(cost * 9), round(cost * 4)
        groups.append({"name": name, "cost": cost, "runs": runs, "sub_agents": sub_agents, "unknown": 0, "running": 0})
    total = {key: sum(group[key] for group in groups) for key in groups[0] if key != "name"}
    return {"by": "day", "since": None, "groups": groups, "total": {"name": "", **total}, "is_complete": True}


async def main() -> None:
    """Start what the page needs."""
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder) / "shop"
        workspace.mkdir()
        (workspace / "settings.toml").write_text(SETTINGS)
        parts = up_detached(Plan(home=Path(folder) / ".loom", worker=None)).parts
        address = {name: part.address or "" for name, part in parts.items()}
        allow_databases(admin_address(Path(folder) / ".loom", urlsplit(address["postgres"]).port or 0))
        addresses = Addresses(temporal=address["temporal"], database=address["postgres"], redis=address["redis"], ui="")
        try:
            async with (
                served(
                    addresses, workspace, model, replay=False, temporal_ui="http://localhost:8233", prices=PRICES
                ) as api,
                browser() as chromium,
            ):
                await screens(api, chromium)
        finally:
            down(Path(folder) / ".loom")


if __name__ == "__main__":
    asyncio.run(main())
