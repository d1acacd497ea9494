"""A run that waits for a person, what it has stored and remembered: after a restore, and after a move to other servers.

The commands are those of `docs/operations/backup.md` and `docs/operations/moving.md`.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from loom.stack.postgres import _programs
from loom.testing.harness import Addresses
from loom.testing.model_server import ThreadedModelServer, ToolUse, calls, text
from tests.databases import TEMPLATE, fresh_database, rows
from tests.docs_pages import SHELLS, blocks_of, lines_of, shell
from tests.forked_commands import forked

MONDAY = "/backups/monday"
SHOP = "/srv/shop/.loom"
PROGRAMS = f"{_programs()}:{os.environ['PATH']}"

COPY, _, DUMP, RESTORE, DRILL = (
    "\n".join(lines_of(block)) for block in blocks_of("docs/operations/backup.md", *SHELLS)
)
STOP, COPY_DATABASE, MOVE = ("\n".join(lines_of(block)) for block in blocks_of("docs/operations/moving.md", *SHELLS))
LONG = "\n".join(f"line {number}: {'x' * 60}" for number in range(2_000))
SECRET_WORD = "the harbour in Trieste"
READ = ToolUse("bash", {"command": "cat long.txt"}, "r1")
WRITE = ToolUse("write_file", {"path": "answer.txt", "content": "done"}, "w1")
STORY = (calls(READ), calls(WRITE), text("finished"))
RULES = json.dumps({"bash": "allow", "write_file": "ask", "default": "deny"})


@dataclass(frozen=True)
class Stack:
    """`loom` on one stack."""

    home: Path
    env: dict[str, str]

    def __call__(self, *words: str, code: int = 0, **changed: str) -> Any:
        """Run a command, and return what it printed as JSON."""
        env = self.env | {"LOOM_HOME": str(self.home)} | changed
        done = subprocess.run(forked(*words, "--json"), env=env, cwd=self.home.parent, check=False, capture_output=True)
        assert done.returncode == code, done.stderr.decode()
        return json.loads(done.stdout)

    @contextmanager
    def up(self, *options: str) -> Iterator[dict[str, Any]]:
        parts: dict[str, Any] = self("up", "--detach", *options)["parts"]
        try:
            yield parts
        finally:
            self("down")


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack with a run that waits for an approval, after a turn with an output that is stored."""
    folder = tmp_path_factory.mktemp("old")
    (folder / "long.txt").write_text(LONG)
    own = {name: value for name, value in os.environ.items() if not name.startswith(("LOOM_", "TEMPORAL_"))}
    with ThreadedModelServer(lambda request: STORY[request.turn]) as model:
        env = own | {
            "LOOM_MODEL": "openai:scripted",
            "OPENAI_BASE_URL": model.openai_url,
            "OPENAI_API_KEY": "key",
            "LOOM_WORKSPACE": str(folder),
            "LOOM_METRICS_PORT": "off",
            "LOOM_SERVE_PORT": "off",
            "LOOM_MEMORY_MODEL": "off",
        }
        yield Stack(folder / ".loom", env)


def run_until_it_asks(stack: Stack, run_id: str) -> None:
    stack("run", SECRET_WORD, "--id", run_id, "--detach", "--permissions", RULES)


def pending(stack: Stack, run_id: str) -> dict[str, Any]:
    """The call that a run waits for."""
    found: list[dict[str, Any]] = soon(lambda: stack("status", run_id)["pending_approvals"])
    return found[0]


def remembered(stack: Stack) -> list[Any]:
    """What memory finds of the run's task."""
    return soon(lambda: stack("memory", "search", SECRET_WORD))


def soon(look: Callable[[], list[Any]]) -> list[Any]:
    """The first answer that isn't empty."""
    found: list[Any] = []
    deadline = monotonic() + 60
    while not found:
        assert monotonic() < deadline
        found = look()
    return found


@pytest.mark.slow
def test_a_restored_backup_has_the_waiting_run_its_artifacts_and_memory_and_the_run_goes_on(old: Stack) -> None:
    backup = Stack(old.home.parent / "backup", old.env)
    with old.up():
        run_until_it_asks(old, "drill")
        asked, stored = pending(old, "drill"), old("artifact", "list", "drill")
        memories = remembered(old)
        shell(COPY.replace(MONDAY, str(backup.home)), old.home.parent, old.env | {"LOOM_HOME": str(old.home)})

    assert "drill" in shell(DRILL.replace(MONDAY, str(backup.home)), old.home.parent, old.env)
    with backup.up():
        assert pending(backup, "drill") == asked
        assert backup("artifact", "list", "drill") == stored != []
        assert {each["id"] for each in memories} <= {each["id"] for each in remembered(backup)}
        backup("approve", "drill")
        assert backup("result", "drill")["output"] == "finished"
    assert (old.home.parent / "answer.txt").read_text() == "done"


def copy_database(source: str, target: str, folder: Path) -> None:
    """Run the guide's `pg_dump` and `pg_restore`."""
    env = {"PATH": PROGRAMS, "OLD_DATABASE_URL": source, "LOOM_DATABASE_URL": target}
    shell(COPY_DATABASE, folder, env)


async def test_databases_and_files_are_restored_from_the_guide_s_copies(addresses: Addresses, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "signing.key").write_text("key")
    variables = ("TEMPORAL_DATABASE_URL", "TEMPORAL_VISIBILITY_URL", "LOOM_DATABASE_URL")
    async with AsyncExitStack() as databases:
        old, new = [
            {
                name: await databases.enter_async_context(
                    fresh_database(addresses.database, TEMPLATE if name == "LOOM_DATABASE_URL" else "template1")
                )
                for name in variables
            }
            for _ in ("old", "new")
        ]
        for name, url in old.items():
            await rows(url, f"CREATE TABLE told AS SELECT '{name}' AS by".encode())
        shell(DUMP, tmp_path, {**old, "PATH": PROGRAMS, "LOOM_HOME": str(home)})
        shell(RESTORE, tmp_path, {**new, "PATH": PROGRAMS})
        assert [await rows(url, b"SELECT by FROM told") for url in new.values()] == [[(name,)] for name in variables]
    shell("mkdir again && tar --extract --file home.tar --directory again", tmp_path, {"PATH": PROGRAMS})
    assert (tmp_path / "again" / "signing.key").read_text() == "key"


@pytest.mark.slow
@pytest.mark.timeout(600)  # five stacks start
def test_runs_memory_and_payloads_move_to_other_servers(old: Stack, tmp_path: Path) -> None:
    new = Stack(tmp_path / ".loom", old.env)
    with old.up():
        run_until_it_asks(old, "moved")
        asked, stored = pending(old, "moved"), old("artifact", "list", "moved")
        remembered(old)
        assert "moved" in shell(
            STOP.replace(SHOP, str(old.home)), old.home.parent, old.env | {"LOOM_HOME": str(old.home)}
        )
        with new.up("--no-worker") as after:
            before = old("doctor")["parts"]
            copy_database(before["postgres"]["address"], after["postgres"]["address"], tmp_path)
    shutil.copy(old.home / "signing.key", new.home / "signing.key")
    with new.up():
        with old.up("--no-worker"):
            told = shell(MOVE.replace(SHOP, str(old.home)), tmp_path, new.env | {"LOOM_HOME": str(new.home)})
            assert "moved: moved, waiting on approval" in told
            (again,) = new("move", "moved", "--from", str(old.home))
            assert (again["run_id"], again["moved"]) == ("moved", True)
        assert pending(new, "moved") == asked
        assert [each["run_id"] for each in new("list", "--waiting", "approval")].count("moved") == 1
        assert new("artifact", "list", "moved") == stored != []
        assert remembered(new)
        new("approve", "moved")
        result = new("result", "moved")
        assert (result["output"], result["turns"]) == ("finished", 3)
