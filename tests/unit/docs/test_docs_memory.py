"""The program in docs/memory.md runs, and prints what the page says; the commands on it exist."""

import re
import subprocess
import sys
from pathlib import Path

from loom.cli.commands import memory

PAGE = Path(__file__).parents[3] / "docs" / "memory.md"


def test_the_example_prints_what_the_page_says() -> None:
    program, output = (re.search(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL) for kind in ("python", "text"))
    assert program is not None
    assert output is not None

    ran = subprocess.run(
        [sys.executable, "-c", program[1]], cwd=PAGE.parents[1], check=True, capture_output=True, text=True
    )

    assert ran.stdout == output[1]


def test_the_page_names_every_command() -> None:
    commands = {each.name or each.callback.__name__ for each in memory.app.registered_commands if each.callback}
    assert set(re.findall(r"^loom memory (\w+)", PAGE.read_text(), re.MULTILINE)) == commands
