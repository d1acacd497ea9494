"""docs/security.md has each requirement of the two chapters once, and the tests that it names exist."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = (ROOT / "docs/security.md").read_text()
ROW: Final = re.compile(r"^\| (\d+\.\d+\.\d+) \| [123] \| [^|]+ \| ([^|]+) \| [^|]* \|([^|]*)\|$", re.MULTILINE)
REQUIREMENTS: Final = {
    "9.1": 3,
    "9.2": 10,
    "9.3": 8,
    "9.4": 4,
    "9.5": 6,
    "9.6": 3,
    "10.1": 3,
    "10.2": 7,
    "10.3": 5,
    "10.4": 8,
}
"""The number of requirements in each section of AISVS 1.0."""


@cache
def names_in(path: str) -> frozenset[str]:
    module = ast.parse((ROOT / "tests" / path).read_text())
    return frozenset(node.name for node in module.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def test_each_requirement_has_one_row() -> None:
    expected = [f"{section}.{number}" for section, count in REQUIREMENTS.items() for number in range(1, count + 1)]
    assert Counter(row[0] for row in ROW.findall(PAGE)) == Counter(expected)
    assert len(re.findall(r"^\| \d+\.", PAGE, re.MULTILINE)) == len(expected)


def test_what_is_held_names_tests_and_all_of_them_exist() -> None:
    for requirement, state, tests in ROW.findall(PAGE):
        named = re.findall(r"`([^`]+)::([^`]+)`", tests)
        assert state in {"held", "partly", "not held"}, requirement
        assert named or state == "not held", requirement
        assert tests.count("`") == 2 * len(named), requirement
        for path, name in named:
            assert name in names_in(path), f"{requirement}: {path}::{name}"
