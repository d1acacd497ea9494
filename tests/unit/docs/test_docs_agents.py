"""The examples of docs/agents.md are run: its files, its Python as one module, its commands and what they print."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from loom.app.forms.agent import AgentForm
from loom.app.loading import load_app
from loom.domain.agents.hooks import Hook, Interceptor
from tests.commands import Commands, commands_in

DOCS = (Path(__file__).parents[3] / "docs" / "agents.md").read_text(encoding="utf-8")
CODE = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
FILES = dict(re.findall(r"```(?:yaml|toml)\n# (\S+)\n(.*?)```", DOCS, re.DOTALL))
COMMANDS = [
    (command, output)
    for block in re.findall(r"```console\n(.*?)```", DOCS, re.DOTALL)
    for command, output in re.findall(r"^\$ loom (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
]


@pytest.fixture
def loom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    """The command in a folder with the module and the files."""
    (tmp_path / "agents").mkdir()
    (tmp_path / "my_agents.py").write_text("".join(CODE), encoding="utf-8")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with commands_in(tmp_path, monkeypatch) as commands:
        yield commands


@pytest.mark.parametrize(("command", "output"), COMMANDS, ids=[command[:40] for command, _ in COMMANDS])
def test_a_command_of_the_docs_prints_what_they_say(loom: Commands, command: str, output: str) -> None:
    # By its file, since each test has a module of its own under the same name.
    words = [f"{loom.folder}/my_agents.py:app" if word == "my_agents:app" else word for word in shlex.split(command)]
    ran = loom(*words)
    assert ran.out + ran.err == output or (not output and ran.out)


def test_the_module_of_the_docs_has_what_they_say(loom: Commands) -> None:
    app = load_app(f"{loom.folder}/my_agents.py")
    assert [agent.name for agent in app.list_agents()] == ["guide"]
    hooks, (interceptor,) = ([each for each in app.hooks if isinstance(each, kind)] for kind in (Hook, Interceptor))
    assert [hook.name for hook in hooks] == ["not_in_production", "count", "page_somebody"]
    assert interceptor.name == "HouseStyle"


def test_the_docs_name_every_field() -> None:
    rows = "".join(line.split("|")[1] for line in DOCS.splitlines() if line.startswith("| `"))
    assert set(AgentForm.model_fields) - set(re.findall(r"`(\w+)`", rows)) == {"kind", "name"}


def test_the_docs_have_examples() -> None:
    assert (len(CODE), len(FILES), len(COMMANDS)) == (4, 4, 3)


def test_the_agent_with_limits_of_its_own_is_valid(loom: Commands) -> None:
    ran = loom("validate", "archivist.yaml")
    assert ran.out.startswith("archivist.yaml: agent, valid\n")
