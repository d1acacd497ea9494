"""Headless Chromium, as a person uses the page with it. Debian's package has it: `.ci/chromium`."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from playwright.async_api import Browser, Page, async_playwright

CHROMIUM: Final = shutil.which("chromium")
WIDE: Final[Any] = {"viewport": {"width": 1200, "height": 800}}
PHONE: Final[Any] = {"viewport": {"width": 380, "height": 780}, "device_scale_factor": 2, "has_touch": True}
FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Start Chromium with a profile of its own."""
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS), timeout=120_000)
        yield chromium
        await chromium.close()


@asynccontextmanager
async def opened(
    chromium: Browser, url: str, *, token: str | None = None, route: Any = None, **look: Any
) -> AsyncIterator[Page]:
    """Open the page at this address in a new window, and fail if it has logged an error.

    `route`, if it is given, answers the page's requests.
    """
    window = await chromium.new_context(**look)
    if route is not None:
        await window.route("**/*", route)
    page = await window.new_page()
    page.set_default_timeout(60_000)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
    await page.goto(url)
    if token is not None:
        await page.get_by_label("Token").fill(token)
        await page.keyboard.press("Enter")
    yield page
    await window.close()
    assert not wrong, wrong
