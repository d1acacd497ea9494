"""Skills on a real server: offered, loaded, read, run in the sandbox, pinned, kept by compressing, if trusted."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loom.domain.context.summary_sections import SECTIONS
from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.domain.skills.catalog import LOAD_SKILL, READ_RESOURCE, RUN_SCRIPT
from loom.testing.model_replies import Reply, SeenRequest
from loom.testing.model_server import ToolUse, calls, script, text
from loom.testing.stream import told
from tests.integration.workflows.conftest import Working
from tests.skills import write_broken_ones, write_release_notes, write_skill
from tests.trees import by_task, delegate

LOAD = calls(ToolUse(LOAD_SKILL, {"name": "release-notes"}))
NOTES = "write release notes for the last changes"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with skills."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def working(working: Working, home: Path) -> Working:
    """Workers whose runs have the skills of that home."""
    return partial(working, skills_home=home)


def tools_of(request: SeenRequest) -> dict[str, Any]:
    """The schema of each tool's arguments, by name."""
    return {tool["function"]["name"]: tool["function"]["parameters"] for tool in request.body.get("tools", ())}


def results_in(request: SeenRequest) -> list[str]:
    """The tool results in one request to the model."""
    return [message["content"] for message in request.messages if message["role"] == "tool"]


async def test_a_run_loads_a_skill_reads_a_resource_and_runs_its_scripts(working: Working, home: Path) -> None:
    write_release_notes(home / ".agents/skills")
    say = {"skill": "release-notes", "script": "scripts/shout.py", "arguments": ["one two"], "stdin": "end"}
    answers = [
        LOAD,
        calls(ToolUse(READ_RESOURCE, {"skill": "release-notes", "path": "references/style.md"})),
        calls(ToolUse(RUN_SCRIPT, say), ToolUse("skill__release-notes__count", {"text": "a b c"})),
        text("Done."),
    ]
    loom, model = await working(script(answers))

    rules = {RUN_SCRIPT: "allow", "skill__release-notes__count": "allow"}
    result = await loom.run(NOTES, permissions=rules)

    assert (result.status, result.output, result.tool_calls) == (RunStatus.COMPLETED, "Done.", 4)
    first, second, third, last = model.requests
    system = first.messages[0]["content"]
    assert "- release-notes: Turns a list of changes into release notes." in system
    assert "Read references/style.md first" not in system
    assert "one for: release-notes" in first.messages[-1]["content"]
    assert "one for: release-notes" not in str(second.messages)
    assert tools_of(first)[LOAD_SKILL]["properties"]["name"]["enum"] == ["release-notes"]
    (loaded,) = results_in(second)
    assert loaded.startswith('<skill_content name="release-notes">\nRead references/style.md first.')
    assert "<skill_resources>\n- references/style.md (10 bytes)\n- scripts/count.py" in loaded
    assert results_in(third)[-1] == "     1\tBe brief."
    assert results_in(last)[-2:] == ["Be brief. ONE TWO end\nits folder: Read-only file system", "3"]
    assert (loom.workspace / "shouted.txt").read_text() == "ONE TWO"


async def test_scripts_ask_a_person_unless_a_rule_says_otherwise(working: Working, home: Path) -> None:
    write_release_notes(home / ".agents/skills")
    run = ToolUse(RUN_SCRIPT, {"skill": "release-notes", "script": "scripts/shout.py", "arguments": ["x"]})
    loom, _ = await working(script([calls(run, ToolUse("skill__release-notes__count", {"text": "a"})), text("Done.")]))

    run_id = await loom.start(NOTES)
    asked = (await loom.asked(run_id, 2))["pending_approvals"]
    await loom.client.abort(run_id)

    assert [(each["tool"], each["for_run"]) for each in asked] == [
        (RUN_SCRIPT, [f"{RUN_SCRIPT}(release-notes/scripts/shout.py)"]),
        ("skill__release-notes__count", ["skill__release-notes__count"]),
    ]
    assert not (loom.workspace / "shouted.txt").exists()


async def test_without_skills_there_is_no_catalog_and_no_tool(working: Working) -> None:
    loom, model = await working(script([text("Done.")]))

    await loom.run()

    assert not [name for name in tools_of(model.requests[0]) if "skill" in name]
    assert "skill" not in model.requests[0].messages[0]["content"]


async def test_a_name_that_is_no_skill_is_refused_with_those_there_are(working: Working, home: Path) -> None:
    write_release_notes(home / ".agents/skills")
    loom, model = await working(script([calls(ToolUse(LOAD_SKILL, {"name": "release"})), text("Done.")]))

    await loom.run(NOTES)

    assert "'release' is not one of ['release-notes']" in results_in(model.requests[1])[0]


async def test_skills_of_a_workspace_are_loaded_only_where_it_is_trusted(
    working: Working, home: Path, workspace: Path
) -> None:
    write_release_notes(workspace / ".agents/skills")
    write_skill(home / ".claude/skills", "mine")
    careful, model = await working(script([text("Done.")]))
    await careful.run(NOTES)
    trusting, other = await working(script([text("Done.")]), trusted_folders=(workspace.parent,))
    await trusting.run(NOTES)

    assert tools_of(model.requests[0])[LOAD_SKILL]["properties"]["name"]["enum"] == ["mine"]
    assert tools_of(other.requests[0])[LOAD_SKILL]["properties"]["name"]["enum"] == ["mine", "release-notes"]


async def test_a_broken_skill_is_reported_and_skipped(working: Working, home: Path) -> None:
    write_broken_ones(home / ".agents/skills")
    write_release_notes(home / ".agents/skills")
    loom, model = await working(script([text("Done.")]))

    assert (await loom.run(NOTES)).status is RunStatus.COMPLETED

    assert tools_of(model.requests[0])[LOAD_SKILL]["properties"]["name"]["enum"] == ["release-notes"]
    start = next(e.task for e in await told(loom.client, loom.started[0]) if e.task.action is Action.START)
    assert start.parameters["skills"] == ["release-notes"]
    assert len(start.parameters["skipped_skills"]) == 6
    assert any("no-description: there is no description" in line for line in start.parameters["skipped_skills"])


async def test_a_skill_that_changes_in_a_run_says_so_and_its_scripts_do_not_run(working: Working, home: Path) -> None:
    folder = write_release_notes(home / ".agents/skills")
    run = ToolUse(RUN_SCRIPT, {"skill": "release-notes", "script": "scripts/shout.py", "arguments": ["x"]})

    def answer(request: SeenRequest) -> Reply:
        if request.index == 0:
            folder.joinpath("scripts/shout.py").write_text("print('other')")
            return LOAD
        return calls(run) if request.index == 1 else text("Done.")

    loom, model = await working(answer)
    await loom.run(NOTES, permissions={RUN_SCRIPT: "allow"})

    loaded, ran = results_in(model.requests[2])
    assert loaded.startswith("The files of the skill release-notes have changed since this run began")
    assert ran.startswith("nothing was run. The files of the skill")


async def test_a_skill_is_loaded_once(working: Working, home: Path) -> None:
    write_release_notes(home / ".agents/skills")
    again = ToolUse(LOAD_SKILL, {"name": "release-notes"})
    loom, model = await working(script([calls(again, again), LOAD, text("Done.")]))

    await loom.run(NOTES)

    texts = results_in(model.requests[2])
    assert [content.startswith("<skill_content") for content in texts] == [True, False, False]
    assert "active already" in texts[1]
    assert "active already" in texts[2]


async def test_a_skill_that_the_request_names_is_active_from_the_start(working: Working, home: Path) -> None:
    write_release_notes(home / ".agents/skills")
    loom, model = await working(script([text("Done.")]))

    await loom.run("do it", skills=["release-notes"])

    system = model.requests[0].messages[0]["content"]
    assert '<skill_content name="release-notes">\nRead references/style.md first.' in system
    assert LOAD_SKILL not in tools_of(model.requests[0])
    assert READ_RESOURCE in tools_of(model.requests[0])


async def test_a_skill_that_nobody_has_is_refused_with_the_reason(
    working: Working, home: Path, workspace: Path
) -> None:
    write_release_notes(workspace / ".agents/skills")
    loom, _ = await working(script([text("never")]))

    result = await loom.client.result(await loom.start_unseen(skills=["release-notes"]))

    assert result.status is RunStatus.FAILED
    assert result.error is not None
    assert "there is no skill 'release-notes'" in result.error.message
    assert "the workspace is not trusted, so its skills are not loaded" in result.error.message


@pytest.mark.slow
@pytest.mark.parametrize("model_name", ["openai:scripted", "anthropic:scripted"])
async def test_an_active_skill_survives_compressing(
    working: Working, home: Path, workspace: Path, model_name: str
) -> None:
    write_release_notes(home / ".agents/skills")
    (workspace / "long.txt").write_text("".join(f"line {n} has some words in it\n" for n in range(90)))
    made = 0

    def talk(request: SeenRequest) -> Reply:
        nonlocal made
        if "You keep the memory of an agent" in json.dumps(request.body):
            return text("\n".join(f"<{name}>of {name}</{name}>" for name in SECTIONS))
        made += 1
        if made == 1:
            return LOAD
        return text("finished") if made > 24 else calls(ToolUse("read_file", {"path": "long.txt"}))

    loom, model = await working(talk, model=model_name, context_window=12_000, collapse_at=1.0)
    result = await loom.run(NOTES)

    assert (result.status, result.output) == (RunStatus.COMPLETED, "finished")
    assert any(event.task.action is Action.COMPRESSION for event in await told(loom.client, loom.started[0]))
    last = json.dumps(model.requests[-1].body)
    assert "Read references/style.md first. Then run scripts/shout.py with the title." in last
    assert "- release-notes: its instructions stand in the conversation" in last


async def test_a_skill_runs_as_a_sub_agent_with_its_instructions_from_the_start(working: Working, home: Path) -> None:
    write_release_notes(home / ".agents/skills")
    write_skill(home / ".agents/skills", "other")
    read = ToolUse(READ_RESOURCE, {"skill": "release-notes", "path": "references/style.md"})
    handed = delegate("notes", "write the notes", add_skills=["release-notes"])
    loom, model = await working(
        by_task(
            {
                "the root": [calls(handed), text("all done")],
                "write the notes": [calls(read), text("brief notes")],
            }
        )
    )

    result = await loom.run("the root")

    assert (result.status, [child["status"] for child in result.children]) == (RunStatus.COMPLETED, ["completed"])
    first, second = model.requests[1:3]
    assert '<skill_content name="release-notes">\nRead references/style.md first.' in first.messages[0]["content"]
    assert "- other:" not in first.messages[0]["content"]
    assert sorted(tools_of(first)) == ["done", "glob", "grep", "read_file", READ_RESOURCE]
    assert results_in(second) == ["     1\tBe brief."]


async def test_a_skill_that_the_parent_does_not_have_cannot_be_handed_on(working: Working, home: Path) -> None:
    write_release_notes(home / ".agents/skills")
    handed = delegate("notes", "write the notes", add_skills=["release-note"])
    loom, model = await working(script([calls(handed), text("Done.")]))

    assert (await loom.run("the root")).children == ()

    assert "cannot hand on skills that you do not have yourself: 'release-note': did you mean" in str(
        results_in(model.requests[1])
    )
