"""Every button, field and link of the web page, in Chromium: what each does to a real run, by mouse and by keyboard."""

import re
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from loom.app.loom_app import LoomApp
from loom.serve.access.roles import Role
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, script, text
from tests.integration.serve.browser import PHONE, WIDE, opened
from tests.integration.serve.conftest import Serving
from tests.integration.serve.served import Served
from tests.trees import by_task, delegate

UI: Final = "http://temporal.example"
ASK: Final = {"write_file": "ask"}


def writes(name: str, content: str = "new\n") -> Reply:
    """The model writes a file."""
    return calls(ToolUse("write_file", {"path": name, "content": content}))


def two_writes(request: SeenRequest) -> Reply:
    """The model writes two files, one after the other, and is done."""
    return text("done") if request.turn >= 2 else writes(f"{request.turn}.txt")


def at(api: Served, place: str) -> dict[str, Any]:
    """Where and as whom to open a view."""
    token = str(api.http.headers["Authorization"]).removeprefix("Bearer ")
    return {"url": f"{api.url}/#/{place}", "token": token}


def shown_run(api: Served, page: Page) -> str:
    """The run whose page this is, which the test then replays."""
    run_id = page.url.rpartition("/")[2]
    api.loom.started.append(run_id)
    return run_id


def press(page: Page, name: str) -> Locator:
    """The button with this name."""
    return page.get_by_role("button", name=name, exact=True)


@pytest.mark.slow
async def test_a_person_pauses_a_run_writes_to_it_resumes_it_and_lets_it_go_on_alone(
    serving: Serving, chromium: Browser
) -> None:
    api = await serving(two_writes, temporal_ui=UI)
    run_id = await api.start(permissions=ASK)
    await api.asked(run_id)
    async with opened(chromium, **at(api, f"runs/{run_id}")) as page:
        temporal = page.get_by_role("link", name="Open in Temporal")
        await expect(temporal).to_have_attribute(
            "href", f"{UI}/namespaces/{api.loom.settings.temporal_namespace}/workflows/{run_id}"
        )
        await press(page, "Pause").click()
        await press(page, "Resume").click()
        await expect(press(page, "Pause")).to_be_visible()
        await page.get_by_label("Message to the agent").fill("use tabs")
        await page.keyboard.press("Shift+Enter")
        await page.keyboard.type("please")
        await press(page, "Send").click()
        await expect(page.get_by_label("Message to the agent")).to_have_value("")
        await expect(page.locator(".facts")).to_contain_text("Messages not yet read1")
        await press(page, "Approve for the run").click()
        await expect(page.locator(".end")).to_contain_text("completed after 3 turns")
        await expect(page.locator(".message .text")).to_have_text("use tabs\nplease")
        await expect(page.locator(".call")).to_have_count(2)
        await expect(page.get_by_label("Message to the agent")).to_be_hidden()
        assert await page.locator(".run-head button").all_inner_texts() == ["Fork"]
        first = page.locator(".call").first
        await expect(first.locator(".output")).to_be_hidden()
        await first.locator("summary").click()
        await expect(first.locator(".diff")).to_have_text("0.txt+1−0+new")
        await expect(first.locator(".output")).to_contain_text("created 0.txt")


@pytest.mark.slow
async def test_a_person_forks_a_run_from_a_turn_and_retries_one_that_was_aborted(
    serving: Serving, chromium: Browser
) -> None:
    api = await serving(two_writes)
    run_id = await api.start(permissions={"write_file": "allow"})
    await api.result(run_id)
    async with opened(chromium, **at(api, f"runs/{run_id}")) as page:
        await page.locator(".turn").filter(has_text="Fork after turn 1").hover()
        await press(page, "Fork after turn 1").click()
        await expect(page.get_by_label("After turn")).to_have_value("1")
        await press(page, "Cancel").click()
        await press(page, "Fork").click()
        await page.get_by_label("After turn").fill("1")
        await page.locator("dialog").get_by_label("Message").fill("once more")
        await press(page, "Start the new run").click()
        await expect(page.locator(".facts")).to_contain_text(f"Forked from{run_id} after turn 1")
        await expect(page.locator(".end")).to_contain_text("completed")
        transcript = await api.loom.client.transcript(shown_run(api, page))
        assert "once more" in [message.content for message in transcript]

        aborted = await api.start(permissions=ASK)
        await api.asked(aborted)
        await api.http.post(f"/v1/runs/{aborted}/abort", json={})
        await page.goto(f"{api.url}/#/runs/{aborted}")
        await press(page, "Retry").click()
        await page.get_by_label("Maximum turns").fill("9")
        await page.locator("dialog").get_by_label("Message").fill("do it after all")
        await page.locator("dialog").get_by_role("button", name="Retry").click()
        await expect(page.locator(".facts")).to_contain_text("of 9")
        await press(page, "Approve for the run").click()
        await expect(page.locator(".end").last).to_contain_text("completed")


async def test_a_run_starts_with_every_option_of_the_form_and_the_list_finds_it(
    serving: Serving, chromium: Browser
) -> None:
    app = LoomApp()
    app.create_agent("writer", tools=["write_file"])
    api = await serving(script([text("done")], repeat_last=True), app=app, unknown_price="assume")
    others = [await api.start(f"another {number}") for number in range(2)]
    async with opened(chromium, **at(api, "runs")) as page:
        await page.get_by_role("navigation").get_by_role("link", name="Start a run").click()
        await page.get_by_label("Task").fill("find the needle")
        await page.get_by_role("combobox", name="Agent").select_option("writer")
        await page.get_by_label("Model").fill("openai:scripted")
        await page.get_by_label("Workspace").fill(str(api.loom.workspace))
        await page.get_by_text("Limits, permissions and more").click()
        await page.get_by_label("Maximum turns").fill("7")
        await page.get_by_label("Maximum cost").fill("1.5")
        await page.get_by_label("Maximum tokens").fill("9000")
        await page.get_by_label("Session").fill("hay")
        await page.get_by_label("Permission rules").fill("write_file: ask")
        await press(page, "Start").click()
        await expect(page.get_by_role("alert")).to_contain_text("Permission rules must be a JSON object")
        await press(page, "Dismiss").click()
        await expect(page.get_by_role("alert")).to_be_empty()
        await page.get_by_label("Permission rules").fill('{"write_file": "ask"}')
        await press(page, "Start").click()
        await expect(page.locator(".end")).to_contain_text("completed")
        for fact in ("Turn1 of 7", "of 9,000", "of $1.50", "Agentwriter", "Modelopenai:scripted"):
            await expect(page.locator(".facts")).to_contain_text(fact)
        needle = shown_run(api, page)

        await page.route(
            re.compile(r"limit=50\b"), lambda route: route.continue_(url=route.request.url.replace("50", "1"))
        )
        await page.get_by_role("link", name="Runs").click()
        rows = page.locator("tbody tr")
        await expect(rows).to_have_count(1)  # the page that the service was asked for is shorter
        await press(page, "Show more").click()
        await expect(rows.filter(has_text=others[0])).to_have_count(1)
        await page.get_by_label("Session").fill("hay")
        await expect(rows).to_have_count(1)
        await expect(rows).to_contain_text("find the needle")
        await page.get_by_label("Status").select_option("running")
        await expect(page.get_by_text("No runs match.")).to_be_visible()
        await page.get_by_label("Status").select_option("completed")
        await page.get_by_label("Session").fill("")
        await page.get_by_label("Task or ID").fill("NEEDLE")
        await expect(rows).to_have_count(1)
        await page.get_by_label("Waits for").select_option("approval")
        await expect(page.get_by_text("No runs match.")).to_be_visible()
        await page.get_by_label("Waits for").select_option("")
        await page.get_by_role("link", name="find the needle").click()
        await expect(page.get_by_role("heading", name=needle)).to_be_visible()


async def test_a_sub_agents_call_is_shown_in_full_changed_and_approved_and_artifacts_are_read(
    serving: Serving, chromium: Browser
) -> None:
    long = "x" * 3000
    replies = {
        "the root": [
            calls(ToolUse("bash", {"command": "seq 20000"})),
            calls(delegate("write it", "write the file", agent="writer")),
            text("all done"),
        ],
        "write the file": [writes("a.txt", long), text("written")],
    }
    api = await serving(by_task(replies), app="tests.delegation_app:app")
    run_id = await api.start("the root", permissions={**ASK, "bash": "allow"})
    await api.asked(run_id)
    async with opened(chromium, **at(api, f"runs/{run_id}")) as page:
        ask = page.locator(".ask")
        await expect(ask).to_contain_text("By sub-agent")
        await press(page, "Show all arguments").click()
        await expect(ask.locator(".lines")).to_have_text(f"+{long}")
        await press(page, "Change and approve").click()
        arguments = page.get_by_label("Arguments, as JSON")
        await arguments.fill("[]")
        await press(page, "Approve with these arguments").click()
        assert await arguments.evaluate("field => field.validationMessage") == "Write a JSON object."
        await arguments.fill('{"path": "b.txt", "content": "mine"}')
        await press(page, "Approve with these arguments").click()
        await expect(page.locator(".end").last).to_contain_text("completed")
        await expect(page.locator(".tree .child")).to_contain_text("completed")
        assert (api.loom.workspace / "b.txt").read_text() == "mine"

        await page.get_by_text("Artifacts", exact=True).click()
        await page.locator(".artifacts button").click()
        await expect(page.locator("dialog .code")).to_contain_text("20000")
        async with page.expect_download() as download:
            await page.get_by_role("link", name="Download").click()
        stored = (await (await download.value).path()).read_text()
        assert "\n10000\n10001\n" in stored
        await press(page, "Close").click()

        await page.locator(".tree .child a").click()
        await expect(page.locator(".facts")).to_contain_text(f"Part of{run_id}")
        await page.get_by_text("Artifacts", exact=True).click()
        await expect(page.locator(".artifacts")).to_have_text("This run has no artifacts.")


async def tab_to(page: Page, name: str) -> None:
    """Press Tab until what has the focus is called this."""
    for _ in range(30):
        await page.keyboard.press("Tab")
        if await page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.innerText") == name:
            return
    raise AssertionError(f"the keyboard doesn't reach {name!r}")


async def test_the_keyboard_alone_reaches_and_decides_everything(serving: Serving, chromium: Browser) -> None:
    api = await serving(two_writes)
    await api.with_own_tenant()
    run_id = await api.start(permissions=ASK)
    await api.asked(run_id)
    async with opened(chromium, **at(api, "runs")) as page:
        await expect(page.get_by_text(run_id)).to_be_visible()
        await tab_to(page, "Skip to content")
        await page.keyboard.press("Enter")
        assert await page.evaluate("document.activeElement.id") == "main"
        await tab_to(page, "do it")
        await page.keyboard.press("Enter")
        await expect(page.locator(".ask")).to_be_visible()
        await tab_to(page, "Change of 0.txt")  # so that the arrow keys scroll a long diff
        await tab_to(page, "Approve")
        await page.keyboard.press("Enter")
        await expect(page.locator(".ask .path")).to_have_text("1.txt")
        await tab_to(page, "Deny")
        await page.keyboard.press("Enter")
        await expect(page.get_by_label("Reason")).to_be_focused()
        await page.keyboard.type("not this one")
        await page.keyboard.press("Enter")
        await expect(page.locator(".end")).to_contain_text("completed")
        await tab_to(page, "Sign out")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("This service needs a token.")).to_be_visible()
        await page.keyboard.type("loom_wrong")
        await page.keyboard.press("Enter")
        await expect(page.locator("dialog .hint").first).to_contain_text("token")
        await expect(page.get_by_label("Token")).to_have_value("")


@pytest.mark.slow
async def test_an_ask_is_in_sight_on_every_screen(serving: Serving, chromium: Browser) -> None:
    (reads, question) = (ToolUse("read_file", {"path": "no.txt"}), calls(ToolUse("ask_user", {"question": "Why?"})))
    turns = [*[calls(reads)] * 8, writes("a.txt"), question, text("done")]
    api = await serving(script(turns))
    run_id = await api.start("a long story", permissions=ASK, budget={"tokens": 100_000})
    await api.asked(run_id)
    async with opened(chromium, **at(api, f"runs/{run_id}"), **WIDE) as page:
        await expect(press(page, "Approve")).to_be_in_viewport(ratio=1)
    async with opened(chromium, **at(api, f"runs/{run_id}"), **PHONE) as page:
        await expect(page.locator(".diff")).to_be_in_viewport(ratio=1)
        await expect(press(page, "Approve")).to_be_in_viewport(ratio=1)
        await press(page, "Approve").tap()
        await expect(page.locator(".ask .question")).to_be_in_viewport()
        await page.get_by_label("Answer").fill("because")
        await press(page, "Answer").tap()
        await expect(page.locator(".end")).to_be_in_viewport()
        await page.get_by_text("About the run").tap()
        await expect(page.locator(".facts")).to_contain_text("of 100,000")


@pytest.mark.slow
async def test_an_approval_that_needs_two_people_names_who_has_approved(
    serving: Serving, chromium: Browser, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('[[rules]]\ntools = ["write_file"]\napprovals = 2\n')
    api = await serving(script([writes("a.txt"), text("done")]), approval_policy=policy)
    run_id = await api.start(permissions=ASK)
    await api.asked(run_id)
    async with opened(chromium, **at(api, f"runs/{run_id}")) as page:
        await expect(page.locator(".votes")).to_have_text("2 people must approve this call.")
        await press(page, "Approve").click()
        await expect(page.locator(".votes")).to_have_text("2 people must approve this call. Approved so far by: root.")
        second = await api.with_token("bea", Role.APPROVER)
        await second.post(f"/v1/runs/{run_id}/approve", json={})
        await expect(page.locator(".end")).to_contain_text("completed")
        await expect(page.locator(".ask")).to_have_count(0)
