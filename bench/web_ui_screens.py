"""Screenshots of Temporal's Web UI for docs/encryption.md: an encrypted run without and with the codec server of
`loom serve`. `make web-ui-screens` takes them. A scripted model plays an agent.
"""

import asyncio
import socket
import tempfile
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from playwright.async_api import Browser, Page

from bench.page_screens import IMAGES
from loom.activities.adapters.encryption.key_ring import new_key, write_keys
from loom.stack.plan import Plan
from loom.stack.postgres import admin_address
from loom.stack.up_down import down, up_detached
from loom.testing.harness import Addresses
from loom.testing.model_server import ToolUse, calls, script, text
from tests.databases import allow_databases
from tests.integration.serve.browser import browser, opened
from tests.integration.serve.served import Served, served

TALL: Final[Any] = {"viewport": {"width": 1200, "height": 1000}}
TASK: Final = "Write Ms Berger the offer: 1,200 euros, valid until Friday."
LETTER: Final = "Dear Ms Berger, we offer you the work for 1,200 euros, valid until Friday."
MODEL: Final = (
    calls(ToolUse("write_file", {"path": "offer.txt", "content": LETTER})),
    text("The offer for Ms Berger is in offer.txt."),
)


async def screens(api: Served, ui: str, chromium: Browser) -> None:
    """Run an agent, and take both pictures of its history."""
    run_id = await api.start(TASK, run_id="offer-12", permissions={"write_file": "allow"})
    await api.result(run_id)
    described = await api.loom.client.temporal.get_workflow_handle(run_id).describe()
    address = f"{ui}/namespaces/default/workflows/{run_id}/{described.run_id}/history"
    async with opened(chromium, "about:blank", **TALL) as page:
        await page.route("**/codec/*", lambda route: route.abort())
        await picture(page, address, "web-ui-encrypted", shows="Codec Server could not connect")
        await page.unroute("**/codec/*")
        await picture(page, address, "web-ui-decoded", shows=TASK)


async def picture(page: Page, address: str, name: str, *, shows: str) -> None:
    """Open the history, and take a picture once it shows a text."""
    await page.goto(address)
    await page.get_by_text(shows).locator("visible=true").first.wait_for()
    await page.screenshot(path=IMAGES / f"{name}.png")


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def main() -> None:
    """Start what the Web UI needs, as docs/encryption.md describes it."""
    with tempfile.TemporaryDirectory() as folder:
        workspace, home, keys = (Path(folder) / name for name in ("office", ".loom", "keys"))
        port = free_port()
        workspace.mkdir()
        write_keys(keys, [new_key()])
        up = up_detached(Plan(home=home, worker=None, codec_endpoint=f"http://127.0.0.1:{port}/codec"))
        address, ui = {name: part.address or "" for name, part in up.parts.items()}, up.ui or ""
        allow_databases(admin_address(Path(folder) / ".loom", urlsplit(address["postgres"]).port or 0))
        addresses = Addresses(temporal=address["temporal"], database=address["postgres"], redis=address["redis"], ui=ui)
        given: dict[str, Any] = {"has_tokens": False, "encryption_keys": keys, "serve_origins": (ui,), "replay": False}
        try:
            async with (
                served(addresses, workspace, script(MODEL), port=port, **given) as api,
                browser() as chromium,
            ):
                await screens(api, ui, chromium)
        finally:
            down(home)


if __name__ == "__main__":
    asyncio.run(main())
