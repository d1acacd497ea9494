"""The web page shows what models, tools and people have written, and never runs or fetches it. Everyone can read it."""

import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from importlib.resources import files
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.async_api import Browser, Page, expect

from bench.page_vendor import VENDOR, vendored, with_names
from loom.serve.app import PAGE
from tests.integration.serve.browser import PHONE, WIDE, opened
from tests.integration.serve.hostile import hostile_texts
from tests.integration.serve.made_up import ORIGIN, MadeUpApi

AXE: Final = files("axe_playwright_python") / "axe.min.js"
VIEWS: Final = {
    "runs": ".runs tbody tr",
    "runs/r": ".log .end",
    "inbox": ".ask",
    "chats": ".chats li",
    "chats/r": ".log .said",
    "costs": ".costs tbody tr",
    "start": "option[value^=crew]",
}
PLAIN: Final = (
    "a plain text",
    "settings",
    "**Done**: see [the report](https://good.test/r), `a.txt` and\n\n| a |\n|-|\n| 1 |",
)
HARM: Final = Path(__file__).with_name("harm.js").read_text()
SECONDS_SINCE_EVENTS: Final = """() => {
  const events = performance.getEntriesByType("resource").find((one) => one.name.endsWith("/events"));
  return (performance.now() - events.responseStart) / 1000;
}"""
ALL_SHOWN: Final = """async () => {
  for (let more; (more = document.querySelector(".log > p button")); ) {
    more.scrollIntoView();
    for (let frames = 0; frames < 2; frames++) await new Promise(requestAnimationFrame);
    more.click();
    await new Promise(requestAnimationFrame);
  }
  for (const details of document.querySelectorAll("main details")) details.open = true;
}"""


@asynccontextmanager
async def page_of(chromium: Browser, api: MadeUpApi, **look: Any) -> AsyncIterator[Page]:
    """Open the page, and fail if it asks for anything but its files and the API."""
    async with opened(chromium, ORIGIN, route=api.route, **look) as page:
        yield page
    assert api.strange == []


async def show(page: Page, view: str) -> None:
    """Go to a view, and wait until it has its content."""
    await page.evaluate(f"location.hash = '#/{view}'")
    await page.locator(VIEWS[view]).first.wait_for(state="attached")


async def test_nothing_that_a_model_or_a_tool_says_is_run_or_fetched(chromium: Browser) -> None:
    texts = cycle(hostile_texts(211))  # prime, so that each text comes in each place
    api = MadeUpApi(partial(next, texts), turns=60, rows=20)
    await nothing_happens(chromium, api)


@pytest.mark.slow
async def test_nothing_is_run_or_fetched_whatever_they_say(chromium: Browser) -> None:
    for seed in range(4):
        texts = cycle(hostile_texts(1009, seed))
        await nothing_happens(chromium, MadeUpApi(partial(next, texts), turns=200, rows=60))


async def nothing_happens(chromium: Browser, api: MadeUpApi) -> None:
    """Look at each view with these texts."""
    events: list[str] = []
    async with page_of(chromium, api, **PHONE) as page:
        page.on("dialog", lambda dialog: events.append(f"dialog {dialog.message}"))
        page.on("popup", lambda popup: events.append(f"popup {popup.url}"))
        page.on("framenavigated", lambda frame: events.append(frame.url) if "/#/" not in frame.url else None)
        for view in VIEWS:
            await page.evaluate("window.hits = 0; window.hit = () => { window.hits += 1; }; 0")
            await show(page, view)
            await page.evaluate(ALL_SHOWN)
            assert await page.evaluate(HARM) == [], view
            assert await page.evaluate("document.documentElement.scrollWidth") == PHONE["viewport"]["width"], view
    assert events == []


async def test_what_a_model_says_is_markdown_and_links_show_their_address(chromium: Browser) -> None:
    said = (
        "# Title\n**bold** [the report](https://good.test/r) https://good.test/s ![a](https://good.test/t.png)\n"
        "1. one\n\n- [x] done\n"
    )
    async with page_of(chromium, MadeUpApi(lambda: said, turns=1, rows=0)) as page:
        await show(page, "runs/r")
        shown = page.locator(".said .markdown")
        await expect(shown.get_by_role("heading", level=4)).to_have_text("Title")
        await expect(shown.locator("strong")).to_have_text("bold")
        await expect(shown.locator("ol")).to_have_text("one")
        await expect(shown.locator("ul")).to_have_text("☑ done")
        await expect(shown.locator("p").first).to_have_text(
            "bold the report (https://good.test/r) https://good.test/s a (https://good.test/t.png)"
        )
        await page.locator(".call summary").click()
        await expect(page.locator(".output")).to_have_text(said)  # a tool's output is plain text


async def test_a_long_text_shows_its_beginning_until_all_of_it_is_asked_for(chromium: Browser) -> None:
    long = "word " * 3_000
    async with page_of(chromium, MadeUpApi(lambda: long, turns=1, rows=0)) as page:
        await show(page, "runs/r")
        await page.locator(".call summary").click()
        for kind, place in ((".task", ".text"), (".said", ":scope > .text"), (".message", ".text"), (".call", "dd")):
            entry = page.locator(f".log {kind}").first
            shown = entry.locator(place).first
            await expect(shown).to_contain_text("word …")
            await entry.get_by_role("button", name="Show all (15,000 characters)").first.click()
            await expect(shown).to_have_text(long)


async def faults(page: Page, **options: Any) -> list[Any]:
    """What axe finds that keeps people from using the page."""
    found = await page.evaluate("options => axe.run(options)", {"resultTypes": ["violations"], **options})
    return [
        (each["id"], [node["html"] for node in each["nodes"]])
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]


async def audit(chromium: Browser, views: Iterable[str], **look: Any) -> None:
    """Let axe look at views in light and in dark, which differ in their colours alone."""
    texts = cycle(PLAIN)
    async with page_of(chromium, MadeUpApi(partial(next, texts)), reduced_motion="reduce", **look) as page:
        await page.evaluate(AXE.read_text())
        for view in views:
            await show(page, view)
            await page.evaluate(ALL_SHOWN)
            assert await faults(page) == [], view
            await page.emulate_media(color_scheme="dark")
            assert await faults(page, runOnly=["color-contrast"]) == [], f"{view}, dark"
            await page.emulate_media(color_scheme="light")


async def test_axe_finds_no_serious_fault_in_a_run_that_waits(chromium: Browser) -> None:
    await audit(chromium, ["runs/r"], **WIDE)


@pytest.mark.slow
@pytest.mark.parametrize("look", [WIDE, PHONE], ids=["wide", "phone"])
async def test_axe_finds_no_serious_fault_in_any_view(chromium: Browser, look: Any) -> None:
    await audit(chromium, VIEWS, **look)


@pytest.mark.slow
async def test_a_run_with_26000_events_is_shown_at_once(chromium: Browser) -> None:
    texts = cycle(PLAIN)
    async with page_of(chromium, MadeUpApi(partial(next, texts), turns=2000), **WIDE) as page:
        await show(page, "runs/r")
        seconds = await page.evaluate(SECONDS_SINCE_EVENTS)
        print(f"shown {seconds:.1f} s after the events arrived")
        assert seconds < 10
        assert await page.locator(".log li").count() == 300


def test_the_libraries_are_those_of_their_versions() -> None:
    found = {file.name: sha256(with_names(file.read_bytes())).hexdigest() for file in VENDOR.iterdir()}
    del found["VERSIONS"]
    assert found == {each.file: each.sha256 for each in vendored()}


def test_the_page_loads_all_of_its_modules_at_once() -> None:
    preloaded = set(re.findall(r'modulepreload" href="(.*)"', (PAGE / "index.html").read_text()))
    assert preloaded | {"app.js"} == {str(file.relative_to(PAGE)) for file in PAGE.rglob("*.js")}
