"""Each line that a replay could take another way is caught, where it would be written, and no other one is."""

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.determinism.lines import ROOT, check, faults, guarded_files, module_of

GUARDED_MODULES = frozenset(module_of(path) for path in guarded_files())


@dataclass(frozen=True)
class Plant:
    """A line at the beginning of a function of a real file, with the import that it needs."""

    line: str
    imports: str = ""
    path: str = "workflows/agent_run.py"
    function: str = "_advance"


def domain(line: str, imports: str = "") -> Plant:
    """A line in the domain's middle."""
    return Plant(line, imports, "loom_domain/machine/transitions.py", "evolve")


PLANTS = {
    "clock": Plant("datetime.now(UTC)", "from datetime import UTC, datetime"),
    "clock under another name": domain("d.now(UTC)", "from datetime import UTC, datetime as d"),
    "clock, not called": domain("clock = datetime.now", "from datetime import datetime"),
    "clock by its module": domain("datetime.datetime.utcnow()", "import datetime"),
    "clock by a name that nobody can read": domain("getattr(datetime, 'n' + 'ow')()", "import datetime"),
    "local time zone": domain("state.started_at.astimezone()"),
    "today": Plant("date.today()", "from datetime import date"),
    "monotonic": Plant("time.monotonic()", "import time"),
    "monotonic under another name": Plant("tick()", "from time import monotonic as tick"),
    "the loop's clock": Plant("asyncio.get_running_loop().time()"),
    "a decision by the run's clock": Plant("late = workflow.now() >= self._looked_at + options.LONG_ACTION"),
    "a time that is left by the run's clock": Plant("left = (self._state.began_at - workflow.now()).total_seconds()"),
    "the run's clock in a condition": Plant("if workflow.now() > self._state.began_at: return"),
    "the run's clock under a name": Plant("now = workflow.now()"),
    "the run's clock as a number": Plant("if max(0.0, workflow.time()) > 5: return"),
    "random": Plant("random.random()", "import random"),
    "secrets": domain("token_hex()", "from secrets import token_hex"),
    "uuid4": domain("uuid4()", "from uuid import uuid4"),
    "urandom": Plant("os.urandom(8)", "import os"),
    "environment": domain("os.environ['HOME']", "import os"),
    "environment through another module": domain("environ['HOME']", "from loom.composition.settings import environ"),
    "a module through the standard library": domain("dataclasses.sys.argv", "import dataclasses"),
    "a module of the standard library, taken out of another": domain("sys.argv", "from dataclasses import sys"),
    "file": Plant("open('a.txt').read()"),
    "path": domain("Path('a.txt').read_text()", "from pathlib import Path"),
    "socket": Plant("socket.create_connection(('localhost', 1))", "import socket"),
    "thread": Plant("threading.Thread(target=print).start()", "import threading"),
    "to_thread": Plant("asyncio.create_task(asyncio.to_thread(len, ''))"),
    "subprocess": Plant("subprocess.run(['ls'])", "import subprocess"),
    "sleep": Plant("asyncio.create_task(asyncio.sleep(1))"),
    "sleep under another name": Plant("nap(1)", "from asyncio import sleep as nap"),
    "wait": Plant("asyncio.create_task(asyncio.wait([]))"),
    "as_completed": Plant("asyncio.as_completed([])"),
    "timeout": Plant("asyncio.timeout(1)"),
    "hash": domain("hash(state.task)"),
    "order in memory": domain("sorted(state.calls, key=id)"),
    "a global that is changed": domain("_SEEN.append(event)", "_SEEN: list[object] = []"),
    "a global that is set": Plant("global _T"),
    "a dictionary that is changed": domain("_SEEN['a'] = event", "_SEEN: dict[str, object] = {}"),
    "a counter of the process": domain("next(_IDS)", "from itertools import count\n_IDS = count()"),
    "a class that is changed": Plant("AgentRun.count = 1"),
    "its own class that is changed": Plant("type(self).count = 1"),
    "an import at run time": domain("__import__('os').getcwd()"),
    "an import inside": domain("import os"),
    "evaluated": domain("eval('1')"),
    "out of the workflow": Plant("workflow.unsafe.is_replaying()"),
    "a driver": Plant("httpx2.get('http://localhost')", "import httpx2"),
    "a helper of the activities": Plant("_cause()", "from loom.activities.call_model import _cause"),
    "an activity that is called": Plant("Progress.publish(None, None)", "from loom.activities.publish import Progress"),
    "an activity's class": Plant("Progress()", "from loom.activities.publish import Progress"),
}


def planted(plant: Plant) -> str:
    """The file with the line in it."""
    source = (ROOT / plant.path).read_text("utf-8")
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    (function,) = [node for node in functions if node.name == plant.function]
    first = function.body[1] if ast.get_docstring(function) else function.body[0]
    lines = source.splitlines(keepends=True)
    lines.insert(first.lineno - 1, f"{' ' * first.col_offset}{plant.line}\n")
    return "".join(lines).replace("\n\nfrom ", f"\n\n{plant.imports}\nfrom ", 1)


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_a_line_that_is_not_deterministic_is_caught(plant: Plant) -> None:
    found = list(faults(planted(plant), GUARDED_MODULES))

    assert found
    lines = planted(plant).splitlines()
    written = [*plant.imports.splitlines(), plant.line]
    assert all(any(part in lines[number - 1] for part in written) for number, _ in found)


@pytest.mark.slow
def test_it_is_caught_in_a_helper_of_the_domain_too(tmp_path: Path) -> None:
    for path in guarded_files():
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    helper = tmp_path / "loom_domain" / "core" / "helper.py"
    helper.write_text("import time\n\n\ndef tick() -> float:\n    return time.monotonic()\n")

    assert check(tmp_path) == ["loom_domain/core/helper.py:1: imports time, which is not known to be deterministic"]


@pytest.mark.slow
def test_the_tree_is_clean() -> None:
    assert check() == []
    assert len(GUARDED_MODULES) > 50
