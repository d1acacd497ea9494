"""Start the runs of an eval, or resume those that it has already started, and check each run when it has ended."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from loom.activities.adapters.temporal.runs import TemporalRuns
from loom.app.forms.eval_case import EvalCase, JudgeCheck
from loom.cli.evals.checks import Rule, checked, label_of
from loom.cli.evals.planned_runs import PREFIX, PlannedRun, repeat_of
from loom.cli.evals.total_budget import TotalBudget
from loom.cli.evals.unattended_runs import begun, ended
from loom.cli.output import one_line
from loom.client import LoomClient
from loom.domain.core.errors import BadRequest, RunNotFoundError
from loom.domain.core.messages import short_digest
from loom.domain.core.requests import RunResult, RunStatus
from loom.domain.evals.judging import SCHEMA, judge_prompt, read_score
from loom.domain.evals.report import CaseReport, CheckedRun, CheckResult, EvalReport, EvalRun
from loom.domain.history.recorded_calls import calls_of
from loom.visibility import beginning_with

LOOKED_UP: Final = 20
"""The maximum number of runs that are looked up on the server at the same time."""
JUDGE_TURNS: Final = 5
"""A judge answers in one turn. The other turns are for repairing its answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalOptions:
    """The options of an eval."""

    name: str
    at_once: int
    rules: Mapping[str, Rule]
    judge_model: str | None
    approves: bool
    """Whether calls that need approval are approved. Otherwise, they are denied."""
    told: Callable[[CheckedRun], None]
    """Called after a run has ended and its checks are done."""


class EvalRuns:
    """The runs of one eval."""

    def __init__(self, loom: LoomClient, options: EvalOptions) -> None:
        self._loom = loom
        self._options = options
        self._places = asyncio.Semaphore(options.at_once)

    async def report(self, cases: Sequence[EvalCase], runs: Sequence[PlannedRun], budget: TotalBudget) -> EvalReport:
        """Continue until each run has ended and its checks are done, or the total budget doesn't cover it.

        Runs that were started before come first, so that they count toward the budget.
        """
        lookups = asyncio.Semaphore(LOOKED_UP)

        async def has_begun(run: PlannedRun) -> bool:
            async with lookups:
                try:
                    await self._loom.has_ended(run.run_id)
                except RunNotFoundError:
                    return False
                return True

        there = dict(zip(runs, await asyncio.gather(*map(has_begun, runs)), strict=True))
        # A run that waits for the budget keeps its place, so the runs that it waits for must have theirs.
        ordered = sorted(runs, key=lambda run: not there[run])
        for run in ordered:
            if there[run]:
                budget.reserve(run)
        outcomes = await asyncio.gather(*(self._one(run, budget, has_begun=there[run]) for run in ordered))
        done = dict(zip(ordered, outcomes, strict=True))
        return EvalReport(
            name=self._options.name,
            cases=tuple(_case(case.name, [done[run] for run in runs if run.case is case]) for case in cases),
        )

    async def recorded(self, cases: Sequence[EvalCase], name: str) -> EvalReport:
        """Check the ended runs of another eval with the checks of these cases.

        If a case was changed and has several runs for the same repeat, the newest one counts. Raises BadRequest if the
        eval has no such runs.
        """
        known = {case.name: case for case in cases}
        newest: dict[tuple[str, int], tuple[EvalCase, str]] = {}
        async for execution in TemporalRuns(self._loom.temporal).current(beginning_with(f"{PREFIX}.{name}.")):
            at = repeat_of(execution.id, name)
            if at is not None and at[0] in known and execution.close_time is not None:
                newest.setdefault(at, (known[at[0]], execution.id))  # the server lists the newest first
        if not newest:
            raise BadRequest(
                f"--against: the eval {name!r} has no runs of these cases that have ended", field="against"
            )

        async def checked_again(case: EvalCase, repeat: int, run_id: str) -> CheckedRun:
            async with self._places:
                return await self._checked(run_id, case, repeat, await self._loom.result(run_id))

        ordered = sorted(newest.items(), key=lambda found: found[0])
        done = await asyncio.gather(*(checked_again(case, repeat, run_id) for (_, repeat), (case, run_id) in ordered))
        return EvalReport(
            name=name,
            cases=tuple(_case(case.name, [each for each in done if each.run.case == case.name]) for case in cases),
        )

    async def _one(self, run: PlannedRun, budget: TotalBudget, *, has_begun: bool) -> CheckedRun | None:
        async with self._places:
            if not has_begun:
                if not await budget.admits(run):
                    return None
                await asyncio.to_thread(run.prepare_workspace)
                await begun(self._loom, run.run_id, run.request)
            result = await ended(self._loom, run.run_id, approves=self._options.approves)
            done = await self._checked(run.run_id, run.case, run.repeat, result)
        await budget.settle(run, _used(done))
        self._options.told(done)
        return done

    async def _checked(self, run_id: str, case: EvalCase, repeat: int, result: RunResult) -> CheckedRun:
        recorded = await self._loom.recorded_tasks(run_id)
        last = recorded.tasks[-1].created_at if recorded.tasks else recorded.began
        run = EvalRun(
            run_id=run_id,
            case=case.name,
            repeat=repeat,
            task=case.request["task"],
            status=result.status,
            output=result.output,
            structured_output=result.structured_output,
            calls=calls_of(recorded.tasks),
            workspace="" if case.workspace is None else await self._loom.workspace_of(run_id),
            cost=result.cost,
            tokens=int(result.usage.get("total_tokens") or 0),
            turns=result.turns,
            seconds=(last - recorded.began).total_seconds() if last and recorded.began else 0.0,
            error="" if result.error is None else result.error.message,
        )
        return await checked(run, case.checks, rules=self._options.rules, judge=self._judged)

    async def _judged(self, run: EvalRun, check: JudgeCheck) -> CheckResult:
        """Score the run's answer in a separate run. An eval that is repeated under its name finds this run again."""
        prompt = judge_prompt(task=run.task, answer=run.output, rubric=check.judge)
        model = check.model or self._options.judge_model
        judge = f"{run.run_id}.judge-{short_digest(f'{model} {prompt}')}"
        about = {PREFIX: {"name": self._options.name, "case": run.case, "repeat": run.repeat, "judges": run.run_id}}
        request = {
            "task": prompt,
            "model": model,
            "output_schema": dict(SCHEMA),
            "permissions": {"*": "deny"},
            "max_turns": JUDGE_TURNS,
            "metadata": about,
        }
        await begun(self._loom, judge, request)
        result = await ended(self._loom, judge, approves=False)
        scored = CheckResult(
            check=label_of(check),
            passed=False,
            judge=judge,
            cost=result.cost,
            tokens=int(result.usage.get("total_tokens") or 0),
        )
        if result.status is not RunStatus.COMPLETED or result.structured_output is None:
            why = result.error.message if result.error else result.output
            return replace(scored, reason=one_line(f"the judge returned no score ({result.status}): {why}", 300))
        score, reason = read_score(result.structured_output)
        passed = score >= check.min_score
        told = reason if passed else f"{score:.2f} is below {check.min_score:.2f}: {reason}"
        return replace(scored, passed=passed, reason=told, score=score)


def _case(name: str, outcomes: Sequence[CheckedRun | None]) -> CaseReport:
    done = tuple(each for each in outcomes if each is not None)
    return CaseReport(name=name, runs=done, not_run=len(outcomes) - len(done))


def _used(done: CheckedRun) -> dict[str, float | None]:
    costs = [done.run.cost, *(check.cost for check in done.checks)]
    return {
        "cost_usd": None if None in costs else sum(cost for cost in costs if cost is not None),
        "tokens": done.run.tokens + sum(check.tokens for check in done.checks),
    }
