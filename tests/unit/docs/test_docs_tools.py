"""The examples of docs/tools.md are run: its Python is one module, and its commands print what it says."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import Commands, commands_in

DOCS = (Path(__file__).parents[3] / "docs" / "tools.md").read_text(encoding="utf-8")
CODE = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
COMMANDS = [
    (command, output)
    for block in re.findall(r"```console\n(.*?)```", DOCS, re.DOTALL)
    for command, output in re.findall(r"^\$ loom (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
]


@pytest.fixture
def loom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    """The command in a folder with the module and something to count."""
    (tmp_path / "my_tools.py").write_text("".join(CODE), encoding="utf-8")
    (tmp_path / "notes.txt").write_text("tea coffee tea milk juice", encoding="utf-8")
    monkeypatch.delenv("WEATHER_KEY", raising=False)
    with commands_in(tmp_path, monkeypatch) as commands:
        yield commands


@pytest.mark.parametrize(("command", "output"), COMMANDS, ids=[command[:40] for command, _ in COMMANDS])
def test_a_command_of_the_docs_prints_what_they_say(loom: Commands, command: str, output: str) -> None:
    # By its file, since each test has a module of its own under the same name.
    words = [f"{loom.folder}/my_tools.py:app" if word == "my_tools:app" else word for word in shlex.split(command)]
    ran = loom(*words)
    assert ran.out == output or (not output and ran.out)


def test_the_docs_have_examples() -> None:
    assert (len(CODE), len(COMMANDS)) == (11, 13)
