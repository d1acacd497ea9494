"""A coding agent in a real repository: reproduces a bug, finds it, edits with mistakes, tests, cleans up and commits.

The steps are those of SWE-agent's demonstration for marshmallow's issue about the rounding of `TimeDelta`, with the
mistakes that its model made. The repository has the code of the release that has this bug, from its package.
"""

import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from loom.domain.core.requests import RunStatus
from loom.testing.model_server import Reply, ToolUse, calls, script, text
from tests.acceptance.conftest import Working

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 12), reason="this release of marshmallow needs distutils")

REPRODUCTION = """\
from datetime import timedelta

from marshmallow.fields import TimeDelta

print(TimeDelta("milliseconds").serialize("bar", {"bar": timedelta(milliseconds=345)}))
"""
TEST = """\
import unittest
from datetime import timedelta

from marshmallow.fields import TimeDelta


class TimeDeltaTest(unittest.TestCase):
    def test_milliseconds_are_exact(self):
        for count in range(1000):
            value = {"bar": timedelta(milliseconds=count)}
            self.assertEqual(TimeDelta("milliseconds").serialize("bar", value), count)
"""
FIELDS = "src/marshmallow/fields.py"
WRONG = "        return int(value.total_seconds() / base_unit.total_seconds())\n"
RIGHT = "        return int(round(value.total_seconds() / base_unit.total_seconds()))\n"
PYTHON = "PYTHONPATH=src python3 -B -W ignore"
RUN_TESTS = ToolUse("bash", {"command": f"{PYTHON} -m unittest tests.test_time_delta"})


def edit(old: str, new: str) -> Reply:
    return calls(ToolUse("edit_file", {"path": FIELDS, "old_string": old, "new_string": new}))


STEPS = [
    calls(ToolUse("write_file", {"path": "reproduce.py", "content": REPRODUCTION})),
    calls(ToolUse("bash", {"command": f"{PYTHON} reproduce.py"})),
    calls(ToolUse("glob", {"pattern": "src/**/fields.py"}), ToolUse("grep", {"pattern": "base_unit", "glob": "*.py"})),
    calls(ToolUse("read_file", {"path": FIELDS, "offset": 1470, "limit": 5})),
    edit(f"  1474\t{WRONG}", RIGHT),
    edit(WRONG, RIGHT.replace("        return", "      return")),
    edit(RIGHT.replace("        return", "      return"), RIGHT),
    calls(ToolUse("bash", {"command": f"{PYTHON} reproduce.py"})),
    calls(RUN_TESTS),
    calls(ToolUse("delete_file", {"path": "reproduce.py"}, "clean")),
    calls(ToolUse("bash", {"command": "git add -A && git commit -m 'Round TimeDelta'"})),
    calls(ToolUse("git_commit", {"message": "Round TimeDelta's values"}, "commit")),
    text("TimeDelta rounds now."),
]


def git(place: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=place, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


@pytest.fixture
def repository(workspace: Path) -> Path:
    """A repository with marshmallow's code and a test that fails."""
    shutil.copytree(
        str(distribution("marshmallow").locate_file("marshmallow")),
        workspace / "src/marshmallow",
        ignore=shutil.ignore_patterns("*.pyc"),
    )
    (workspace / "tests").mkdir()
    (workspace / "tests/__init__.py").touch()
    (workspace / "tests/test_time_delta.py").write_text(TEST)
    (workspace / ".gitignore").write_text("__pycache__/\n")
    git(workspace, "init", "-q", "-b", "dev")
    git(workspace, "add", "-A")
    git(workspace, "-c", "user.name=Ada", "-c", "user.email=ada@example.org", "commit", "-q", "-m", "Begin")
    return workspace


async def test_an_agent_finds_a_bug_mends_it_and_commits(working: Working, repository: Path) -> None:
    loom, model = await working(script([calls(RUN_TESTS), *STEPS]))
    rules = {"bash": "allow", "write_file": "allow", "edit_file": "allow", "delete_file": "ask", "git_commit": "ask"}

    run_id = await loom.start("TimeDelta loses a millisecond of 345: mend it", permissions=rules)
    for call in ("clean", "commit"):
        status = await loom.asked(run_id)
        assert status["pending_approvals"][0]["call_id"] == call
        await loom.client.approve(run_id, call)
    result = await loom.client.result(run_id)

    assert result.status is RunStatus.COMPLETED
    heard = [[str(m["content"]) for m in request.messages if m["role"] == "tool"] for request in model.requests][-1]
    failed, _, wrong, found, line, shown, copied, broken, mended, right, passed, _, refused, committed = heard
    assert "FAILED (failures=1)" in failed
    assert "344" in wrong
    assert FIELDS in found
    assert f"{FIELDS}:1474" in line
    assert WRONG.rstrip("\n") in shown
    assert "line numbers" in copied
    assert "no longer parses" in broken
    assert "round(" in mended
    assert "345" in right
    assert "OK" in passed
    assert "git_commit" in refused
    assert committed.startswith("committed ")
    assert git(repository, "log", "--format=%s") == "Round TimeDelta's values\nBegin"
    assert git(repository, "show", "--name-only", "--format=", "HEAD") == FIELDS
    assert git(repository, "status", "--short") == ""
