"""The programs of all pages are right for a strict type checker, and the pages name only what the package has."""

import ast
import json
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

import loom
from loom import LoomApp, LoomClient
from loom.testing import Harness
from tests.docs_pages import PAGES, ROOT, Block, blocks

PYRIGHT: Final = Path(sysconfig.get_path("scripts")) / "basedpyright"
FOREIGN: Final = "docs/coming-from.md"
"""The page with programs of other frameworks, which aren't installed."""
GIVEN: Final = """
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
import httpx
from temporalio import workflow
from loom import Deny, LoomApp, LoomClient, ToolContext
from loom.testing import *
from loom.testing.harness import Harness

app: LoomApp
loom: LoomClient
client: LoomClient
run_id: str
token: str
STOCK: dict[str, int]
loom_worker: LoomWorker
self: Any
"""
"""What programs take from the text around them, and from the programs above them."""
KIT: Final = "docs/testing.md"
"""The page on which `loom` is the testing kit's."""
MODULES: Final = {
    "given": GIVEN,
    "given_by_the_kit": GIVEN.replace("loom: LoomClient", "loom: Harness"),
    "my_tools": "from loom import LoomApp\napp: LoomApp",
    "my_workflows": "class Nightly: ...\nasync def fetch() -> None: ...",
    "review_tools": "from loom import LoomApp\napp: LoomApp",
}
SETTINGS: Final = {
    "typeCheckingMode": "strict",
    "extraPaths": [str(ROOT)],
    # Programs of pages are short. Often, only the text says what uses a name.
    **dict.fromkeys(("reportUnusedImport", "reportUnusedFunction", "reportUnusedVariable", "reportUnusedClass"), False),
}
A_USER: Final = """
import loom
from loom import LoomClient, RunStatus, StatusFields, errors
from loom.errors import LoomError, RunNotFoundError
from loom.testing import Addresses, LoomProcesses, LoomTimeSkipping, LoomWorker, text

settings = loom.Settings(temporal_address="localhost:7233", task_queue="loom", max_turns=9)


def reason(error: LoomError) -> str:
    return "gone" if isinstance(error, RunNotFoundError | errors.RefusedError) else error.message


async def tokens(client: LoomClient, run_id: str) -> int | None:
    status: StatusFields = await client.status(run_id)
    if status["status"] == RunStatus.WAITING_FOR_APPROVAL:
        await client.approve(run_id, status["pending_approvals"][0]["call_id"])
    return status["usage"]["total_tokens"]


async def test_with_annotated_fixtures(
    loom_worker: LoomWorker, loom_processes: LoomProcesses, loom_time_skipping: LoomTimeSkipping, loom_stack: Addresses
) -> None:
    async with loom_worker([text("Done.")]) as (kit, model):
        run = await kit.recorded(await kit.start("Refund order 7"))
        run.assert_called("refund", times=len(model.requests))
    async with loom_processes([], app="shop:app") as (_, _, workers):
        await workers.restart()
    async with loom_time_skipping([]) as (_, _, time):
        await time.sleep(3 * 86_400)
    print(loom_stack)


async def mistakes(client: LoomClient) -> None:
    loom.Settings(temporal_adress="localhost:7233")  # wrong
    (await client.status("run"))["tunr"]  # wrong
    status: int = (await client.status("run"))["status"]  # wrong
"""
"""What no page shows."""


def program(block: Block) -> str:
    """The program as a module."""
    text = block.text
    if compile(text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT).co_flags & 0x80:  # it awaits at the top
        text = "async def page():\n" + "".join(f"    {line}\n" for line in text.splitlines())
    if "def test_" in text:
        text = f"# pyright: basic\n{text}"  # pytest passes the arguments, which nobody annotates
    return f"from {'given_by_the_kit' if block.page == KIT else 'given'} import *\n{text}"


def test_every_program_of_the_pages_is_right_for_a_strict_type_checker(tmp_path: Path) -> None:
    shown = {f"page_{number}": block for number, block in enumerate(blocks("python")) if block.page != FOREIGN}
    programs = {name: program(block) for name, block in shown.items()}
    for name, text in {**MODULES, **programs, "user": A_USER}.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(SETTINGS))
    ran = subprocess.run(
        [PYRIGHT, "--pythonpath", sys.executable, "--level", "error", "--outputjson"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    found = [
        (Path(each["file"]).stem, each["range"]["start"]["line"] + 1, each["message"])
        for each in json.loads(ran.stdout)["generalDiagnostics"]
    ]
    wrong = {number for number, line in enumerate(A_USER.splitlines(), 1) if line.endswith("# wrong")}
    assert {line for name, line, _ in found if name == "user"} == wrong
    others = [f"{shown.get(name, name)}+{line}: {message}" for name, line, message in found if name != "user"]
    assert not others, "\n".join(others)


def test_the_pages_name_only_what_the_package_has() -> None:
    owners = {"loom": (loom, LoomClient, Harness), "client": (LoomClient,), "app": (LoomApp(),)}
    text = "\n".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"`(?:await )?(client|app)\.(?!py\b)(\w+)", text))
    named |= set(re.findall(r"`(?:await )?(loom)\.([A-Z]\w+|\w+(?=\())", text))
    assert {("client", "publish"), ("app", "provide"), ("loom", "MemoryStore"), ("loom", "recorded")} <= named
    assert [each for each in sorted(named) if not any(hasattr(owner, each[1]) for owner in owners[each[0]])] == []
