"""The web page, as a person uses it: in Chromium, against the service, a worker and a scripted model."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, expect

from loom.app.loom_app import LoomApp
from loom.serve.access.roles import Role
from loom.testing.model_server import ToolUse, calls, script, text
from tests.acceptance.conftest import Working, working
from tests.integration.serve.browser import opened
from tests.integration.serve.conftest import Serving
from tests.integration.serve.processes import serve_process
from tests.integration.serve.served import Served

__all__ = ["working"]

WRITE = calls(ToolUse("write_file", {"path": "a.txt", "content": "new\n"}))
HOSTILE = "<img src=x onerror=alert(1)> \x07 \u202etxt.exe"
SHOWN = "<img src=x onerror=alert(1)> ‹U+0007› ‹U+202E›txt.exe"
WORDS = "".join(f"w{number} " for number in range(200))


chatting = LoomApp()
chatting.create_agent("writer", tools=["write_file"], permissions={"write_file": "ask"})


def token_of(api: Served) -> str:
    return str(api.http.headers["Authorization"]).removeprefix("Bearer ")


async def test_a_person_starts_a_run_watches_it_approves_a_change_and_answers(
    serving: Serving, chromium: Browser
) -> None:
    write = ToolUse("write_file", {"path": "a.txt", "content": f"{HOSTILE}\n"})
    api = await serving(script([calls(write), calls(ToolUse("ask_user", {"question": HOSTILE})), text(HOSTILE)]))
    (api.loom.workspace / "a.txt").write_text("old\n")
    async with opened(chromium, f"{api.url}/#/start", token=token_of(api)) as page:
        await page.get_by_label("Task").fill("write it")
        await page.get_by_label("Workspace").fill(str(api.loom.workspace))
        await page.get_by_text("Limits, permissions and more").click()
        await page.get_by_label("Permission rules").fill('{"write_file": "ask"}')
        await page.get_by_role("button", name="Start", exact=True).press("Enter")

        await expect(page.get_by_role("group", name="Change of a.txt")).to_have_text(f"@@ -1 +1 @@-old+{SHOWN}")
        assert (api.loom.workspace / "a.txt").read_text() == "old\n"
        await page.get_by_role("button", name="Approve", exact=True).press("Enter")

        await expect(page.locator(".ask .question")).to_have_text(SHOWN)
        await page.get_by_label("Answer").fill("this one")
        await page.keyboard.press("Enter")
        await expect(page.locator(".end")).to_contain_text("completed after 3 turns")
        await expect(page.locator(".message .text")).to_have_text([SHOWN, "this one"])
        await expect(page.locator(".said .text:visible")).to_have_text(SHOWN)
        await expect(page.locator(".call")).to_contain_text("success")
        assert await page.locator("img, main script").count() == 0
        api.loom.started.append(urlsplit(page.url).fragment.rpartition("/")[2])


async def test_the_inbox_lists_three_runs_of_which_one_is_approved_one_denied_and_one_aborted(
    serving: Serving, chromium: Browser
) -> None:
    api = await serving(lambda request: text("done") if request.turn else WRITE)
    await api.with_own_tenant()
    first, second, third = [await api.start(permissions={"write_file": "ask"}) for _ in range(3)]
    for run_id in (first, second, third):
        await api.asked(run_id)
    async with opened(chromium, f"{api.url}/#/inbox", token=token_of(api)) as page:
        cards = page.locator(".ask")
        await expect(cards).to_have_count(3)
        await cards.filter(has_text=first).get_by_role("button", name="Approve", exact=True).click()
        await cards.filter(has_text=second).get_by_role("button", name="Deny").click()
        await page.get_by_label("Reason").fill("not now")
        await page.keyboard.press("Enter")
        await expect(cards).to_have_count(1)
        await page.get_by_role("link", name=third).click()
        await page.get_by_role("button", name="Abort").click()
        await page.keyboard.press("Escape")  # changes nothing
        await page.get_by_role("button", name="Abort").click()
        await page.get_by_label("Reason").fill("enough")
        await page.keyboard.press("Enter")
        await expect(page.locator(".end")).to_contain_text("aborted")
        await page.get_by_role("link", name="Inbox").click()
        await expect(page.get_by_text("Nothing waits for a person.")).to_be_visible()
        for milliseconds in range(40):  # leave each view before, while and after its answer arrives
            await page.evaluate(f"location.hash = '#/{('runs', 'inbox')[milliseconds % 2]}'")
            await page.wait_for_timeout(milliseconds)
    results = [await api.result(run_id) for run_id in (first, second, third)]
    assert [result["status"] for result in results] == ["completed", "completed", "aborted"]
    decided = [event.data for event in await api.events(second) if event.data.get("action") == "node.approval_decided"]
    assert [(each["parameters"]["approved"], each["parameters"]["by"]) for each in decided] == [(False, "ann")]


async def test_a_person_chats_and_sees_what_it_costs(serving: Serving, chromium: Browser) -> None:
    api = await serving(
        script([WRITE, text("**Hello**"), text("Again", chunks=2), text("Anew")]), app=chatting, unknown_price="assume"
    )
    await api.with_own_tenant()
    async with opened(chromium, f"{api.url}/#/chats", token=token_of(api)) as page:
        await page.get_by_label("Message").fill("Write it")
        await page.get_by_label("Name").fill("a/b %")
        await page.get_by_label("Agent").select_option("writer")
        await page.get_by_role("button", name="Start a chat").click()
        await page.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.locator(".said strong")).to_have_text("Hello")
        await expect(page.get_by_text("Ready")).to_be_visible()

        await page.get_by_role("link", name="Chats").click()
        await page.get_by_role("link", name="a/b %").click()
        await page.get_by_label("Message").fill("And again")
        await page.keyboard.press("Enter")
        await expect(page.locator(".said .text")).to_have_text(["Hello", "Again"])
        await expect(page.get_by_label("Message")).to_have_value("")
        await page.get_by_role("button", name="Close").click()
        await page.get_by_role("button", name="Close the chat").click()
        await expect(page.locator(".run-head .badge")).to_have_text("aborted")
        await page.get_by_label("Message").fill("A new one")
        await page.keyboard.press("Enter")
        await expect(page.locator(".said .text").last).to_have_text("Anew")

        await page.get_by_role("link", name="Costs").click()
        await page.get_by_label("Add up by").select_option("agent")
        await expect(page.get_by_role("row", name="writer")).to_contain_text("$")


async def test_a_viewer_is_offered_nothing_that_is_refused(serving: Serving, chromium: Browser) -> None:
    api = await serving(script([WRITE, text("done")]))
    run_id = await api.start(permissions={"write_file": "ask"})
    await api.asked(run_id)
    viewer = await api.with_token("vic", Role.VIEWER)
    token = str(viewer.headers["Authorization"]).removeprefix("Bearer ")
    async with opened(
        chromium, f"{api.url}/#/runs/{run_id}", token=token, viewport={"width": 380, "height": 700}
    ) as page:
        await expect(page.get_by_text("Your role, viewer, may not approve or deny calls.")).to_be_visible()
        assert await page.get_by_role("button").all_inner_texts() == ["Sign out"]
        assert await page.evaluate("document.documentElement.scrollWidth") == 380
        answer = await page.request.get(api.url)
        policy = answer.headers["content-security-policy"].split("; ")
        assert {"default-src 'none'", "script-src 'self'", "trusted-types dompurify"} < set(policy)
        assert "require-trusted-types-for 'script'" in policy
    await api.http.post(f"/v1/runs/{run_id}/approve")
    await api.result(run_id)


@pytest.mark.slow
async def test_a_run_stays_on_the_screen_while_the_service_is_killed(
    working: Working, chromium: Browser, tmp_path: Path
) -> None:
    loom, _ = await working(script([WRITE, text(WORDS, chunks=100)]))
    run_id = await loom.start(permissions={"write_file": "ask"})
    ask = (await loom.asked(run_id))["pending_approvals"][0]
    with serve_process(loom.settings, tmp_path) as first:
        url = await first.url()
        page_at = opened(chromium, f"{url}/#/runs/{run_id}")
        page = await page_at.__aenter__()
        await expect(page.locator(".ask")).to_have_count(1)
        first.kill()
    await expect(page.get_by_text("The service doesn't answer.")).to_be_visible()
    browser = await page.context.new_cdp_session(page)
    await browser.send(
        "Page.setWebLifecycleState", {"state": "frozen"}
    )  # as Chromium does with a tab in the background
    await loom.client.approve(run_id, ask["call_id"], by="ann")
    await loom.client.result(run_id)  # all of it happens while nobody serves the page
    with serve_process(loom.settings, tmp_path, "--port", str(urlsplit(url).port)) as second:
        await second.url()
        await browser.send("Page.setWebLifecycleState", {"state": "active"})
        await expect(page.locator(".end")).to_have_count(1)
        await expect(page.get_by_text("The service doesn't answer.")).to_be_hidden()
        await expect(page.locator(".said .text:visible")).to_have_text([WORDS.strip()])
        await expect(page.locator(".turn h2")).to_have_text(["Turn 1", "Turn 2"])
        await expect(page.locator(".call")).to_have_count(1)
        await expect(page.locator(".ask")).to_have_count(0)
        await page_at.__aexit__(None, None, None)
