"""Runs that go beyond what a worker was told to serve, started by another user, by an agent's definition, by forks and
by children. Each is refused where it is prepared, before anything outside was read.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from loom import LoomApp
from loom.domain.core.requests import RunStatus
from loom.testing.harness import Addresses, Harness, harness
from loom.testing.model_server import calls, script, text
from tests.integration.attacks.ordinary_user import as_nobody, interpreter
from tests.integration.workflows.conftest import Working
from tests.trees import by_task, delegate

CREW = {"name": "pair", "mode": "sequential", "members": [{"name": "one"}, {"name": "two"}]}


@pytest.fixture
def elsewhere(tmp_path: Path, workspace: Path) -> Path:
    """A folder beside the workspace whose name begins like it, and a link to it in the workspace."""
    folder = tmp_path / "workspace-of-another"
    (folder / ".agents/skills").mkdir(parents=True)
    (workspace / "link").symlink_to(folder)
    (workspace / "below").mkdir()
    return folder


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that another user may enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def outside(workspace: Path, elsewhere: Path) -> list[str]:
    """The same folders outside, spelled in every way that a path has."""
    spelled = [
        *(elsewhere, workspace.parent, "/", "/etc", "~", f"/proc/{os.getpid()}/root", "/proc/self/cwd/.."),
        *(workspace / "link", workspace / "..", workspace / "below/../..", workspace / "link/.agents"),
        *(f"{workspace}/below/../link", f"/proc/self/root{elsewhere}", f"//{elsewhere}", "/no/such/folder"),
        *("/root", "/home", "/var/lib", f"{workspace}2", f"{workspace}/../{elsewhere.name}"),
    ]
    return [str(each) for each in spelled]


async def asked_by_another_user(loom: Harness, place: Path, requests: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Start these runs by a plain client: as another user where this one is root, else as this user."""
    program = sys.executable
    options: dict[str, Any] = {}
    if os.geteuid() == 0:
        if (found := interpreter(place)) is None:
            pytest.skip("no interpreter here that an ordinary user may start")
        program, options = found, as_nobody(place)
    command = [
        program,
        "-m",
        "tests.integration.attacks.stranger",
        loom.settings.temporal_address,
        loom.settings.temporal_namespace,
        loom.settings.task_queue,
    ]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, **options)
    said, wrong = await process.communicate(json.dumps(requests).encode())
    assert process.returncode == 0, wrong.decode()
    return list(json.loads(said))


async def test_another_user_gets_no_run_outside_the_roots_and_none_that_bypasses(
    working: Working, workspace: Path, elsewhere: Path, place: Path
) -> None:
    loom, model = await working(script([text("done")]))
    agent: dict[str, Any] = {"task": "x"}
    crew: dict[str, Any] = {"task": "x", "crew": CREW}
    out = outside(workspace, elsewhere)
    requests: list[tuple[str, dict[str, Any]]] = [
        *(("AgentRun", {**agent, "workspace": path}) for path in out),
        *(("CrewRun", {**crew, "workspace": path}) for path in out),
        ("AgentRun", {**agent, "mode": "bypass"}),
        ("AgentRun", {**agent, "mode": "bypass", "workspace": str(workspace)}),
        ("CrewRun", {**crew, "mode": "bypass"}),
    ]

    outcomes = await asked_by_another_user(loom, place, requests)

    for (_, request), (kind, message) in zip(requests, outcomes, strict=True):
        setting = "LOOM_MAX_MODE" if request.get("mode") else "LOOM_WORKSPACES"
        assert (kind, setting in message) == ("BadRequest", True), (request, kind, message)
    assert model.requests == []


async def test_another_user_gets_runs_within_the_bounds(working: Working, workspace: Path, place: Path) -> None:
    loom, _ = await working(script([text("done")] * 3))
    inside = workspace / "a/b"
    inside.mkdir(parents=True)
    (workspace / "link").symlink_to(inside)
    requests = [{"workspace": str(inside)}, {"workspace": str(workspace / "link")}, {"mode": "accept-edits"}]
    outcomes = await asked_by_another_user(loom, place, [("AgentRun", {"task": "x", **each}) for each in requests])
    assert [kind for kind, _ in outcomes] == [RunStatus.COMPLETED] * 3


async def test_further_roots_are_served_too(working: Working, workspace: Path, elsewhere: Path) -> None:
    loom, _ = await working(script([text("done")] * 2), workspaces=(workspace / "below", elsewhere))
    assert (await loom.run(workspace=str(workspace / "link"))).status is RunStatus.COMPLETED
    assert "LOOM_WORKSPACES" in await refusal(loom, workspace=str(workspace))


async def test_an_agent_that_bypasses_is_not_served_alone_or_as_a_child(
    working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = LoomApp()
    app.create_agent("reckless", mode="bypass")
    monkeypatch.setattr("tests.delegation_app.app", app)
    replies = by_task({"ROOT": [calls(delegate("r", "CHILD", agent="reckless")), text("refused")]})
    loom, model = await working(replies, app="tests.delegation_app:app", max_mode="accept-edits")

    assert "LOOM_MAX_MODE" in await refusal(loom, agent="reckless")
    result = await loom.run("ROOT", permissions={"delegate_task": "allow"})

    assert [child["status"] for child in result.children] == ["failed"]
    assert "LOOM_MAX_MODE" in str(model.requests[-1].messages[-1]["content"])


@pytest.mark.parametrize(
    ("change", "setting"),
    [
        ({}, "LOOM_WORKSPACES"),
        ({"mode": "default"}, "LOOM_WORKSPACES"),
        ({"workspace": "WORKSPACE"}, "LOOM_MAX_MODE"),
        ({"workspace": "WORKSPACE", "mode": "default"}, ""),
    ],
)
async def test_a_fork_of_a_run_that_was_wider_stays_within_the_bounds(
    addresses: Addresses, workspace: Path, elsewhere: Path, change: dict[str, str], setting: str
) -> None:
    changed = {**change, **({"workspace": str(workspace)} if "workspace" in change else {})}
    queue = f"bounds-{uuid4().hex[:8]}"
    wide: dict[str, Any] = {"task_queue": queue, "max_mode": "bypass", "workspaces": (workspace, elsewhere)}
    async with harness(addresses, workspace, script([text("done")]), **wide) as (loom, _):
        origin = await loom.start(mode="bypass", workspace=str(elsewhere))
        assert (await loom.client.result(origin)).status is RunStatus.COMPLETED
    narrow: dict[str, Any] = {"task_queue": queue, "max_mode": "accept-edits", "workspaces": (workspace,)}
    async with harness(addresses, workspace, script([text("done")]), **narrow) as (loom, _):
        fork = await loom.client.fork(origin, turn=0, **changed)  # type: ignore[arg-type]
        result = await loom.client.result(fork)
    assert result.status is (RunStatus.FAILED if setting else RunStatus.COMPLETED)
    assert setting in (result.error.message if result.error else "")


async def test_a_signature_is_for_the_mode_that_it_names_and_for_none_that_a_file_names(
    working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = LoomApp()
    app.create_agent("reckless", mode="bypass")
    app.create_agent("plain")
    monkeypatch.setattr("tests.delegation_app.app", app)
    rules = {"delegate_task": "allow"}
    replies = by_task(
        {
            "ROOT": [calls(delegate("r", "CHILD", agent="reckless")), text("refused")],
            "WIDE": [
                calls(delegate("w", "CHILD", agent="plain"), delegate("v", "CHILD", agent="reckless")),
                text("ok"),
            ],
            "CHILD": [text("done"), text("done")],
            "do it": [text("done")],
        }
    )
    loom, model = await working(replies, app="tests.delegation_app:app")  # its runs are signed by the owner

    assert "LOOM_MAX_MODE" in await refusal(loom, agent="reckless")
    narrow = await loom.run("ROOT", permissions=rules)
    assert [child["status"] for child in narrow.children] == ["failed"]
    assert "LOOM_MAX_MODE" in str(model.requests[-1].messages[-1]["content"])

    origin = await loom.start(agent="reckless", mode="bypass")
    assert (await loom.client.result(origin)).status is RunStatus.COMPLETED
    wide = await loom.run("WIDE", permissions=rules, mode="bypass")
    assert [child["status"] for child in wide.children] == ["completed", "completed"]

    inherited = await loom.client.result(await loom.client.fork(origin, turn=0))
    assert "LOOM_MAX_MODE" in (inherited.error.message if inherited.error else "")
    named = await loom.client.result(await loom.client.fork(origin, turn=0, mode="accept-edits"))
    assert named.status is RunStatus.COMPLETED


async def refusal(loom: Harness, **request: Any) -> str:
    """Why a run was refused."""
    error = (await loom.run_unseen(**request)).error
    assert error is not None
    assert error.type == "BadRequest"
    return error.message
