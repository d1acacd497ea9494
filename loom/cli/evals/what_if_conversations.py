"""Rerun recorded runs with another model or prompt. Recorded results answer their tool calls, and no tool runs.

The new runs are agent runs on a separate task queue. The command starts a worker for this queue. The worker's app is
the app in your settings, with an interceptor that answers each tool call (`loom/app/recorded_answers.py`).
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from loom.activities.adapters.temporal.run_history import TemporalPasts
from loom.app.agent_files import FOLDER
from loom.app.loading import load_app, project_of, with_absolute_file
from loom.cli.evals.planned_runs import PREFIX
from loom.cli.evals.unattended_runs import begun, ended
from loom.cli.evals.what_if_rules import Changes
from loom.cli.output import console, counted, money, one_line, visible
from loom.cli.run_names import run_named
from loom.client import LoomClient
from loom.composition.settings import Settings
from loom.domain.core.errors import BadRequest, UnreachableError
from loom.domain.core.messages import JsonObject, canonical, short_digest
from loom.domain.evals.what_if import WhatIf, answered_in, answers_of, parting_of
from loom.domain.history.diffs import TurnSeen
from loom.domain.history.past_turns import PastTurn

FOLDER_NAME: Final = "what-if"
"""The folder in Loom's own state for the recordings and their workers' logs."""
LOG: Final = "worker.log"
STOPS_WITHIN: Final = 20.0
"""Seconds after which a worker that was asked to stop is killed. Its activities have eight."""
_WORKER: Final = ("-P", "-m", "loom._worker")
_DROPPED: Final = ("session_id", "metadata", "patience")
"""Fields of the recorded request that the new request doesn't inherit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """A recorded run, and the request of the new run."""

    run_id: str
    new_run_id: str
    request: JsonObject
    """The new run's request."""
    agent: str
    """The recorded agent."""
    turns: tuple[PastTurn, ...]


async def rerun(
    loom: LoomClient, settings: Settings, names: Sequence[str], *, name: str, changes: Changes, app: str | None
) -> tuple[WhatIf, ...]:
    """Rerun each run, and compare the new run with the recorded one.

    An interrupted what-if with the same name and the same changes resumes. Raises BadRequest if a run can't be rerun,
    and UnreachableError if the worker ends.
    """
    runs = [await _recorded(loom, await run_named(loom, each), name, changes) for each in names]
    place = f"{name}-{short_digest(canonical(asdict(changes)))}"  # other changes are another what-if
    queue = f"{settings.task_queue}-what-if-{place}"
    folder = (settings.home / FOLDER_NAME / place).absolute()
    served = with_absolute_file(app or settings.app or "")
    if served:
        load_app(served)  # an app that can't be loaded is an error before anything starts
    _write(folder, served, runs, changes)
    ours = settings.model_copy(update={"task_queue": queue})
    async with LoomClient.connected(ours) as own, _worker(folder, ours, served, runs) as until_it_ends:
        work: asyncio.Future[list[WhatIf]] = asyncio.gather(*(_one(own, run) for run in runs))
        done, _ = await asyncio.wait((work, until_it_ends), return_when=asyncio.FIRST_COMPLETED)
        if work not in done:
            work.cancel()
            raise UnreachableError(f"the what-if's worker has ended: {_last_line(folder / LOG)}")
        return tuple(work.result())


def conversations_view(done: Sequence[WhatIf]) -> dict[str, Any]:
    """Return the comparison as JSON values."""
    return {"runs": [_view(each) for each in done]}


def print_conversations(done: Sequence[WhatIf]) -> None:
    """Print the comparison for people."""
    out = console()
    for each in done:
        out.print(f"{each.run_id} → {each.new_run_id}: {each.status} {visible(each.error)}".rstrip(), soft_wrap=True)
        answered = f"{counted(each.answered, 'call')} answered from the recorded run"
        out.print(f"  {answered}, {each.not_recorded} not recorded and not run", soft_wrap=True)
        if each.parting is None:
            out.print("  all calls are the same")
        else:
            for whose, turn in zip(("recorded", "new"), each.parting, strict=True):
                out.print(f"  {whose:<9}{_told(turn)}", soft_wrap=True)
        for whose, output in zip(("recorded", "new"), each.outputs, strict=True):
            out.print(f"  {whose:<9}answer: {visible(one_line(output, 300)) or '(none)'}", soft_wrap=True)
        out.print(f"  cost {money(each.costs[0])} recorded, {money(each.costs[1])} new")


async def _recorded(loom: LoomClient, run_id: str, name: str, changes: Changes) -> Recorded:
    if not await loom.has_ended(run_id):
        raise BadRequest(f"run {run_id!r} has not ended", field="what-if")
    turns = await loom.turns(run_id)
    given = next(iter((await TemporalPasts(loom.temporal).beginning(run_id)).given), None)
    spec = next((call.spec for turn in turns for call in turn.calls if call.spec is not None), None)
    if spec is None or not isinstance(given, dict):
        raise BadRequest(f"run {run_id!r} has not begun its first turn", field="what-if")
    if unfit := next((field for field in ("crew", "chat", "forked_from") if given.get(field)), None):
        raise BadRequest(f"run {run_id!r} has `{unfit}`, so it can't be rerun", field="what-if")
    rules = {**given.get("permissions", {}), **changes.permissions}
    new = {
        **{field: value for field, value in given.items() if field not in _DROPPED},
        "agent": spec.name if changes.prompt is None else _changed(spec.name),
        "workspace": spec.workspace,
        "patience": 0,
        "metadata": {PREFIX: {"name": name, "what_if": run_id}},
        **({"permissions": rules} if rules else {}),
        **{field: value for field in ("model", "mode") if (value := getattr(changes, field)) is not None},
    }
    digest = short_digest(f"{canonical(new)}\n{changes.prompt or ''}")
    new_run_id = f"what-if.{name}.{run_id.replace('/', '.')}.{digest}"
    return Recorded(run_id=run_id, new_run_id=new_run_id, request=new, agent=spec.name, turns=turns)


def _changed(agent: str) -> str:
    """Return the name of the agent that extends a recorded one with the new prompt."""
    return f"{agent[:50]}-what-if"


def _write(folder: Path, app: str, runs: Sequence[Recorded], changes: Changes) -> None:
    agents = {_changed(run.agent): run.agent for run in runs} if changes.prompt is not None else {}
    answers = {run.new_run_id: [asdict(each) for each in answers_of(run.turns)] for run in runs}
    recording = {"app": app, "agents": agents, "prompt": changes.prompt, "answers": answers}
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # only for its owner: it contains what runs have read
        (folder / "recording.json").write_text(json.dumps(recording, ensure_ascii=False), encoding="utf-8")
        (folder / "app.py").write_text(
            '"""Serves a what-if of `loom eval`."""\n\nfrom pathlib import Path\n\n'
            "from loom.app.recorded_answers import app_of_recording\n\n"
            'app = app_of_recording(Path(__file__).with_name("recording.json"))\n',
            encoding="utf-8",
        )
    except OSError as error:
        raise BadRequest(f"{folder} can't be written: {error}", field="what-if") from None


@asynccontextmanager
async def _worker(
    folder: Path, settings: Settings, app: str, runs: Sequence[Recorded]
) -> AsyncIterator["asyncio.Task[int]"]:
    """Start a worker, and yield a task that ends with the worker. The worker stops when the block ends."""
    beside = [project_of(app) / FOLDER] if app else []  # the folder of agent files that the app itself would have
    folders = [str(each) for each in (*settings.agents, *beside) if each.is_dir()]
    env = {
        **os.environ,
        "LOOM_APP": f"{folder / 'app.py'}:app",
        "LOOM_TASK_QUEUE": settings.task_queue,
        "LOOM_AGENTS": ",".join(folders),
        "LOOM_WORKSPACES": os.pathsep.join({str(run.request["workspace"]) for run in runs}),
        "LOOM_MAX_MODE": "bypass",  # no tool runs
        "LOOM_MEMORY": "off",
        "LOOM_METRICS_PORT": "off",
    }
    with (folder / LOG).open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *_WORKER, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        ending = asyncio.create_task(process.wait())
        try:
            yield ending
        finally:
            if process.returncode is None:
                process.terminate()
            if not (await asyncio.wait({ending}, timeout=STOPS_WITHIN))[0]:
                process.kill()
            await ending


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return f"{one_line(next((line for line in reversed(lines) if line.strip()), 'it logged nothing'), 400)} ({log})"


async def _one(loom: LoomClient, run: Recorded) -> WhatIf:
    await begun(loom, run.new_run_id, run.request)
    result = await ended(loom, run.new_run_id, approves=False)
    turns = await loom.turns(run.new_run_id)
    recorded = await loom.result(run.run_id)
    answered, not_recorded = answered_in(turns)
    return WhatIf(
        run_id=run.run_id,
        new_run_id=run.new_run_id,
        status=result.status,
        error="" if result.error is None else result.error.message,
        parting=parting_of(run.turns, turns),
        answered=answered,
        not_recorded=not_recorded,
        outputs=(recorded.output, result.output),
        costs=(recorded.cost, result.cost),
    )


def _told(turn: TurnSeen | None) -> str:
    if turn is None:
        return "has ended"
    return f"t{turn.number} " + ("; ".join(visible(one_line(call)) for call in turn.calls) or "answers")


def _view(each: WhatIf) -> dict[str, Any]:
    sides = None if each.parting is None else [None if turn is None else asdict(turn) for turn in each.parting]
    return {
        "run_id": each.run_id,
        "new_run_id": each.new_run_id,
        "status": each.status,
        "error": each.error,
        "parting": None if sides is None else {"recorded": sides[0], "new": sides[1]},
        "answered": each.answered,
        "not_recorded": each.not_recorded,
        "output": {"recorded": each.outputs[0], "new": each.outputs[1]},
        "cost": {"recorded": each.costs[0], "new": each.costs[1]},
    }
