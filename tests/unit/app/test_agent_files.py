"""Agents in files: what can be said, what is refused and how, and what a worker makes of them."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from loom import LoomApp
from loom.activities.toolbox.built_in.conversation import done_tool
from loom.app.agent_files import agent_files, read_agent_file, read_agents
from loom.app.file_kinds import schema_of
from loom.app.forms.agent import AgentFields, AgentForm
from loom.app.registry import Registry, merged
from loom.domain.agents.definitions import AgentDefinition
from loom.domain.agents.spec import Activation, AgentConfig
from loom.domain.core.errors import BadRequest
from loom.domain.core.requests import Budget
from loom.domain.permissions.judge import Mode

PUBLISHED = Path(__file__).parents[3] / "docs" / "schemas"

YAML = """
description: Answers questions.
extends: base
model: openai:small
fallbacks: [demo]
system_prompt: |
  Be kind.
tools: [read_file, mcp__time]
extra_tools: [grep]
disabled_tools: [bash]
enabled_skills: [trips]
activation: explicit
permissions:
  bash(git diff:*): allow
  default: deny
mode: read-only
max_turns: 9
budget: {cost_usd: 0.5}
temperature: 0
require_done_tool: true
hooks: [audit]
"""

TOML = """
description = "Answers questions."
extends = "base"
model = "openai:small"
fallbacks = ["demo"]
system_prompt = "Be kind.\\n"
tools = ["read_file", "mcp__time"]
extra_tools = ["grep"]
disabled_tools = ["bash"]
enabled_skills = ["trips"]
activation = "explicit"
mode = "read-only"
max_turns = 9
temperature = 0
require_done_tool = true
hooks = ["audit"]
budget.cost_usd = 0.5
[permissions]
"bash(git diff:*)" = "allow"
default = "deny"
"""


def written(folder: Path, name: str, text: str) -> Path:
    """A file of the test's."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("ending", "text"), [("yaml", YAML), ("toml", TOML)])
def test_a_file_says_what_python_can_say(tmp_path: Path, ending: str, text: str) -> None:
    path = written(tmp_path, f"clerk.{ending}", text)
    assert read_agent_file(path) == AgentDefinition(
        name="clerk",
        description="Answers questions.",
        extends="base",
        model="openai:small",
        fallbacks=("demo",),
        system_prompt="Be kind.\n",
        tools=("read_file", "mcp__time"),
        config=AgentConfig(enabled_skills=("trips",), extra_tools=("grep",), disabled_tools=("bash",)),
        activation=Activation.EXPLICIT,
        permissions={"bash(git diff:*)": "allow", "default": "deny"},
        mode=Mode.READ_ONLY,
        max_turns=9,
        budget=Budget(cost_usd=0.5),
        temperature=0,
        require_done_tool=True,
        hooks=("audit",),
        origin=str(path),
    )


def test_files_and_python_have_the_same_fields() -> None:
    in_python = {"output_schema" if name == "output" else name for name in AgentFields.__annotations__}
    assert in_python == set(AgentForm.model_fields) - {"kind", "name"}


def test_a_file_may_name_its_agent_itself(tmp_path: Path) -> None:
    assert read_agent_file(written(tmp_path, "a.yaml", "name: Front desk")).name == "Front desk"
    assert read_agent_file(written(tmp_path, "b.yaml", "description: x")).name == "b"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tols: [a]", "there is no field tols: did you mean tools?"),
        ("x1: 1", "there is no field x1: the fields are activation, approval_timeout"),
        ("temperature: 3", "temperature 3 must be at most 2"),
        ("max_turns: 0", "max_turns 0 must be at least 1"),
        ("max_turns: many", "max_turns: 'many' is invalid: it must be a whole number"),
        ("tools: read_file", "`tools` must be a list of names: ['read_file']"),
        ("mode: fast", "mode 'fast' must be one of default, read-only, accept-edits or bypass"),
        (
            "model: gpt-5",
            "model: 'gpt-5' is not a model: use openai:NAME, openai-responses:NAME, anthropic:NAME or demo",
        ),
        ("permissions: {bash: maybe}", "permissions: rule 'bash' must be allow, ask or deny, not 'maybe'"),
        ("permissions: {bash: no}", "permissions: rule 'bash' must be allow, ask or deny, not False"),
        ("permissions: {'bash(': allow}", "permissions: "),
        ("budget: {tokns: 5}", "there is no field budget.tokns: did you mean tokens?"),
        ("name: ' x'", "name: ' x' cannot be a name"),
        ("on: x", "the key True is not text: put it in quotes"),
        ("require_done_tool: 1", "require_done_tool: 1 is invalid: it must be true or false"),
        ("a: 1\na: 2", "not valid YAML: line 2: the key 'a' occurs twice"),
        ("a: [", "not valid YAML: line 1: "),
        ("- a", "must contain fields such as `description: …`"),
        ("", "is empty"),
        ("!!python/object/apply:os.system [ls]", "not valid YAML: line 1: could not determine a constructor"),
    ],
)
def test_what_is_wrong_is_told_with_file_field_and_a_way_out(tmp_path: Path, text: str, says: str) -> None:
    path = written(tmp_path, "clerk.yaml", text)
    with pytest.raises(BadRequest) as refused:
        read_agent_file(path)
    assert refused.value.message.startswith(f"{path}: ")
    assert says in refused.value.message


@pytest.mark.parametrize("content", ["name: evil\nmode: bypass", "root:x:0:0:SECRET", "- SECRET"])
def test_a_link_out_of_the_folder_is_refused_and_its_target_is_not_shown(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "agents"
    folder.mkdir()
    (tmp_path / "outside.yaml").write_text(content)
    (folder / "clerk.yaml").symlink_to(tmp_path / "outside.yaml")
    with pytest.raises(BadRequest, match="is a link out of its folder") as refused:
        agent_files([folder])
    assert "SECRET" not in refused.value.message
    assert str(tmp_path / "outside.yaml") not in refused.value.message


def test_links_within_a_folder_and_to_a_folder_are_followed(tmp_path: Path) -> None:
    folder = tmp_path / "real"
    folder.mkdir()
    original = written(folder, "clerk.yaml", "description: Answers.")
    (folder / "desk.yaml").symlink_to("clerk.yaml")
    (tmp_path / "agents").symlink_to(folder)
    assert agent_files([tmp_path / "agents"]) == (original,)


@pytest.mark.parametrize("text", ["- SECRET", "SECRET"])
def test_what_a_file_without_fields_contains_is_not_shown(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadRequest, match="must contain fields") as refused:
        read_agent_file(written(tmp_path, "clerk.yaml", text))
    assert "SECRET" not in refused.value.message


def test_a_folder_in_the_place_of_a_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="is a folder: name the files in it"):
        read_agent_file(tmp_path)


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    paths = [written(tmp_path, "a.yaml", "tols: 1\nmax_turns: 0"), written(tmp_path, "b.toml", "x = ")]
    with pytest.raises(BadRequest) as refused:
        read_agents(paths)
    assert [line.split(": ")[0] for line in refused.value.message.splitlines()] == [str(paths[n]) for n in (0, 0, 1)]


def test_a_folder_has_its_yaml_and_toml_files_and_a_missing_one_has_none(tmp_path: Path) -> None:
    for name in ("b.toml", "a.yml", "c.yaml", "notes.md", "sub/d.yaml"):
        written(tmp_path, name, "")
    assert [path.name for path in agent_files([tmp_path, tmp_path / "none", tmp_path])] == ["a.yml", "b.toml", "c.yaml"]


def of(*agents: AgentDefinition, app: LoomApp | None = None) -> Registry:
    """What a worker has of these."""
    return merged({"app mine": app or LoomApp()}, built_in={"done": done_tool()}, written=agents)


def test_agents_of_files_and_of_python_are_one_family(tmp_path: Path) -> None:
    app = LoomApp()
    app.create_agent("base", system_prompt="Be kind.", extra_tools=["done"], disabled_skills=("sql",))
    file = read_agent_file(written(tmp_path, "night.yaml", "extends: base"))
    night = of(file, app=app).agents["night"]
    assert (night.system_prompt, night.config.disabled_skills) == ("Be kind.", ("sql",))


def test_names_that_clash_or_are_not_there_are_refused_at_start(tmp_path: Path) -> None:
    app = LoomApp()
    app.create_agent("clerk")
    clerk = read_agent_file(written(tmp_path, "clerk.yaml", "description: x"))
    with pytest.raises(BadRequest, match=r"two agents are called 'clerk': one is .*test_agent_files.*clerk.yaml"):
        of(clerk, app=app)
    for text, says in (
        ("extends: clark", "extends the unknown agent 'clark': did you mean 'clerk'"),
        ("disabled_tools: [don]", "names the unknown tool 'don': did you mean 'done'"),
        ("hooks: [audit]", "names the unknown hook 'audit': the hooks are none"),
    ):
        with pytest.raises(BadRequest, match=says):
            of(read_agent_file(written(tmp_path, "other.yaml", text)), app=app)


@pytest.mark.parametrize("kind", ["agent", "crew", "permissions"])
def test_the_published_schema_is_the_one_that_files_are_checked_by(kind: str) -> None:
    assert json.loads((PUBLISHED / f"{kind}.json").read_text(encoding="utf-8")) == schema_of(kind)


@pytest.mark.parametrize(("text", "fits"), [(YAML, True), ("tols: 1", False), ("permissions: {bash: maybe}", False)])
def test_the_schema_says_the_same_as_the_check(text: str, fits: bool) -> None:
    document: Any = yaml.safe_load(text)
    assert jsonschema.Draft202012Validator(schema_of("agent")).is_valid(document) is fits
