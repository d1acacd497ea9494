"""`loom validate` and `loom agents`: what a worker would have, before one has to."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from loom.exit_codes import COMPLETED, USAGE
from loom.testing.harness import Addresses
from tests.commands import Commands, commands_in

BASE = "description: Answers.\nsystem_prompt: Be kind.\ntools: [read_file, grep]\npermissions: {bash: deny}\n"
NIGHT = 'extends = "base"\nextra_tools = ["bash"]\nmax_turns = 5\n[permissions]\nbash = "ask"\n'


@pytest.fixture
def loom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    """The command in a folder with two agents, and no server."""
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "base.yaml").write_text(BASE)
    (folder / "night.toml").write_text(NIGHT)
    with commands_in(tmp_path, monkeypatch, TEMPORAL_ADDRESS="127.0.0.1:1") as commands:
        yield commands


def test_files_that_are_fine_are_said_to_be_and_drawn(loom: Commands) -> None:
    ran = loom("validate", "agents/base.yaml", "agents/night.toml")
    assert ran.code == COMPLETED
    assert ran.out.splitlines() == [
        "agents/base.yaml: agent, valid",
        "agents/night.toml: agent, valid",
        "",
        "base",
        "└─ night",
    ]


def test_programs_read_every_file_with_its_problems(loom: Commands) -> None:
    (loom.folder / "agents" / "bad.yaml").write_text("tols: [a]\nmax_turns: 0")
    ran = loom("validate", "agents/bad.yaml", "agents/none.yaml", "--json")
    assert ran.code == USAGE
    assert json.loads(ran.out) == {
        "ok": False,
        "files": [
            {
                "file": "agents/bad.yaml",
                "kind": "agent",
                "problems": [
                    "agents/bad.yaml: max_turns 0 must be at least 1",
                    "agents/bad.yaml: there is no field tols: did you mean tools?",
                ],
                "warnings": [],
            },
            {
                "file": "agents/none.yaml",
                "kind": None,
                "problems": ["agents/none.yaml: there is no such file"],
                "warnings": [],
            },
        ],
        "graph": {},
    }


def test_a_knowledge_base_that_is_not_there_is_a_warning(
    loom: Commands, addresses: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    (loom.folder / "docs").mkdir()
    (loom.folder / "docs" / "a.md").write_text("Tulips are red.")
    (loom.folder / "agents" / "clerk.yaml").write_text("knowledge: [handbook-of-clerks, handbok]")
    assert loom("validate", "agents/clerk.yaml").err == ""  # no database to ask
    monkeypatch.setenv("LOOM_DATABASE_URL", addresses.database)
    monkeypatch.setenv("LOOM_EMBEDDER", "off")
    assert loom("knowledge", "add", "docs", "--name", "handbook-of-clerks").code == COMPLETED
    ran = loom("validate", "agents/clerk.yaml")
    assert (ran.code, ran.out.splitlines()[0]) == (COMPLETED, "agents/clerk.yaml: agent, valid")
    assert ran.err == (
        "agents/clerk.yaml: knowledge: there is no base 'handbok' yet; `loom knowledge list` shows all bases\n"
    )
    monkeypatch.setenv("LOOM_DATABASE_URL", "postgresql://127.0.0.1:1/none")
    monkeypatch.setattr("loom.activities.adapters.postgres.database._CONNECT_SECONDS", 0.1)
    ran = loom("validate", "agents/clerk.yaml")
    assert ran.code == COMPLETED
    assert "there is no base" not in ran.err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("extends: bsae", "extends the unknown agent 'bsae': did you mean 'base'?"),
        ("extends: bad", "extends itself: bad → bad; remove one `extends`"),
        ("tools: [raed_file]", "names the unknown tool 'raed_file': did you mean 'read_file'?"),
        (
            "permissions: {bsh: allow}",
            "agents/bad.yaml: permissions: permission rule 'bsh' names no tool: did you mean bash?",
        ),
        ("name: base", "two agents are called 'base'"),
    ],
)
def test_a_file_is_checked_beside_the_others_and_a_workers_tools(loom: Commands, text: str, says: str) -> None:
    (loom.folder / "agents" / "bad.yaml").write_text(text)
    ran = loom("validate", "agents/bad.yaml")
    assert ran.code == USAGE
    assert says in ran.err


def test_permission_files_are_checked_too(loom: Commands) -> None:
    (loom.folder / "rules.json").write_text('{"bash": "ask", "bash(git diff:*)": "allow"}')
    assert loom("validate", "rules.json").out == "rules.json: permissions, valid\n"
    (loom.folder / "rules.toml").write_text('[permissions]\nbash = "maybe"\nbsh = "allow"')
    assert loom("validate", "rules.toml").err == "rules.toml: rule 'bash' must be allow, ask or deny, not 'maybe'\n"
    (loom.folder / "rules.toml").write_text('[permissions]\nbsh = "allow"')
    assert "names no tool: did you mean bash?" in loom("validate", "rules.toml").err


def test_a_file_of_no_kind_is_asked_to_say_what_it_is(loom: Commands) -> None:
    (loom.folder / "x.yaml").write_text("steps: [1, 2]")
    assert "the kind is unclear: add `kind: …` with one of permissions, crew, agent" in loom("validate", "x.yaml").err
    (loom.folder / "x.yaml").write_text("kind: robot")
    assert "kind: 'robot' is not a known kind" in loom("validate", "x.yaml").err
    (loom.folder / "x.yaml").write_text("mode: sequential")
    assert loom("validate", "x.yaml").err == "x.yaml: members is missing\n"
    (loom.folder / "x.yaml").write_text("mode: sequential\nmembers: []")
    assert "members [] must have at least 1" in loom("validate", "x.yaml").err


def test_the_schema_of_a_kind_is_printed(loom: Commands) -> None:
    assert json.loads(loom("validate", "--schema", "agent").out)["title"] == "Loom agent"
    assert loom("validate", "--schema", "robot").code == USAGE
    assert loom("validate").code == USAGE


def test_the_tools_of_memory_may_be_named_and_are_an_agents_where_something_is_remembered(
    loom: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = loom.folder / "agents" / "recalling.yaml"
    file.write_text("tools: [search_memory, read_file]\npermissions: {write_memory: deny}\n")
    assert loom("validate", "agents/recalling.yaml").code == COMPLETED
    listed = {tool["name"]: tool for tool in json.loads(loom("tools", "list", "--json").out)["tools"]}
    assert "set LOOM_DATABASE_URL" in listed["search_memory"]["missing"]

    def has() -> list[str]:
        return list(json.loads(loom("agents", "show", "recalling", "--json").out)["tools"])

    monkeypatch.setenv("LOOM_AGENTS", "agents")
    assert has() == ["done", "read_file"]
    monkeypatch.setenv("LOOM_DATABASE_URL", "postgresql://127.0.0.1:1/nowhere")
    assert has() == ["done", "read_file", "search_memory"]
    monkeypatch.setenv("LOOM_MEMORY", "off")
    assert has() == ["done", "read_file"]


def test_agents_are_listed_with_where_they_come_from(loom: Commands) -> None:
    (loom.folder / ".loom").mkdir()
    (loom.folder / "agents").rename(loom.folder / ".loom" / "agents")
    found = json.loads(loom("agents", "list", "--json").out)
    assert [(each["name"], each["extends"], each["tools"], Path(each["origin"]).name) for each in found] == [
        ("base", None, 3, "base.yaml"),
        ("default", None, None, "built-in"),
        ("night", "base", 4, "night.toml"),
    ]


def test_an_agent_is_shown_with_all_that_it_inherits_and_without_a_server_no_figures(
    loom: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOM_AGENTS", "agents")
    shown = json.loads(loom("agents", "show", "night", "--json").out)
    assert (shown["system_prompt"], shown["tools"], shown["max_turns"]) == (
        "Be kind.",
        ["bash", "done", "grep", "read_file"],
        5,
    )
    assert (shown["permissions"], shown["stats"]) == ({"bash": "ask"}, None)
    said = loom("agents", "show", "night").out
    assert said.endswith("no Temporal server answers at 127.0.0.1:1: run `loom up`, or set TEMPORAL_ADDRESS\n")
    assert loom("agents", "show", "nigt").err == "there is no agent 'nigt': did you mean 'night'?"


def test_a_folder_of_agents_that_is_not_there_is_refused(loom: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_AGENTS", "nowhere")
    assert loom("agents", "list").code == USAGE
    assert "LOOM_AGENTS: there is no folder" in loom("agents", "list").err
