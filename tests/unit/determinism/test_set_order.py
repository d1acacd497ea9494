"""What depends on the order of a set is caught by mypy in workflow and domain code, and nothing else is."""

import re
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import pytest

from tests.determinism.lines import ROOT

CAUGHT = """
    for one in names: print(one)
    "".join(names)
    tuple(names)
    [name for name in names]
    {name: 1 for name in names}
    list(state.denied & names)
    [*names]
    print(*names)
    next(iter(names))
    {*names}.pop()
    dict.fromkeys(names)
    list(enumerate(names))
    sorted(names, key=len)
    max(names, key=len)
    sum(weights)
    f"{names}"
    str(names)
    _lines(names)
    ordered.extend(names)
    ordered += names
    list(table.keys() & names)
    list(table["a"])
    for each in names if ordered else ordered: print(each)
"""
FINE = """
    sorted(names)
    sorted(name.lower() for name in names)
    {name.lower() for name in names}
    any(name for name in names)
    len(names | state.denied)
    "a" in names
    {*names, "a"}
    table["b"] = names
    replace(state, denied=names)
    table.get("b", frozenset())
    [name for name in table.keys()]
    [name for name in sorted(names)]
"""
HEAD = """
from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class _Rules:
    denied: frozenset[str]


def _lines(lines: Iterable[str]) -> str:
    return "".join(lines)


def _planted(state: _Rules, names: frozenset[str], weights: set[float]) -> None:
    ordered: list[str] = []
    table: dict[str, frozenset[str]] = {}
"""


@pytest.mark.slow
def test_the_order_of_a_set_is_caught(tmp_path: Path) -> None:
    """One copy of a real file for each line: no line hides another."""
    copytree(ROOT / "loom_domain", tmp_path / "loom" / "domain")
    (tmp_path / "loom" / "__init__.py").touch()
    workflows = tmp_path / "loom" / "workflows"
    workflows.mkdir()
    (workflows / "__init__.py").touch()
    expected = set()
    for number, line in enumerate(_lines(CAUGHT)):
        of_workflows = number % 2 == 0
        real = ROOT / ("workflows/visibility.py" if of_workflows else "loom_domain/skills/active.py")
        copy = (workflows if of_workflows else tmp_path / "loom" / "domain" / "skills") / f"planted_{number}.py"
        copy.write_text(f"{real.read_text('utf-8')}{HEAD}    {line}\n")
        expected.add((copy.relative_to(tmp_path).as_posix(), line))
    fine = "".join(f"    {line}\n" for line in _lines(FINE))
    (workflows / "fine.py").write_text((ROOT / "workflows/visibility.py").read_text("utf-8") + HEAD + fine)

    found = {
        (path, (tmp_path / path).read_text("utf-8").splitlines()[int(line) - 1].strip())
        for path, line in re.findall(r"(?m)^(\S+?):(\d+): error: Depends on the order of a set", _mypy(tmp_path))
    }

    assert found == expected


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def _mypy(folder: Path) -> str:
    """What mypy says of a tree, with the plugin and the rules of this repository, whose cache is left alone."""
    (folder / "mypy.ini").write_text(
        f"[mypy]\nstrict = true\ncache_dir = {folder}/cache\nplugins = {ROOT}/tests/determinism/set_order.py\n"
        "[mypy-temporalio.*]\nfollow_imports = skip\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", "loom"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert ended.returncode in (0, 1), ended.stderr
    return ended.stdout
