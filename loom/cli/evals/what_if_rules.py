"""Judge the tool calls of recorded runs again with other rules. No model is called, and no tool runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loom.cli.call_checks import opened_checker
from loom.cli.output import console, counted, one_line, visible
from loom.cli.run_names import run_named
from loom.client import LoomClient
from loom.domain.core.errors import BadRequest
from loom.domain.core.tool_calls import describe
from loom.domain.evals.what_if import RecordedDecision, decisions_of
from loom.domain.permissions.judge import Judgement, Mode


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """What differs from the recorded runs."""

    model: str | None = None
    prompt: str | None = None
    """The system prompt that replaces the agent's."""
    permissions: Mapping[str, str] = field(default_factory=dict)
    """Rules to merge over the runs' own rules."""
    mode: Mode | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NewDecision:
    """A recorded decision, and the decision under the new rules."""

    recorded: RecordedDecision
    judgement: Judgement | None
    """None if the call's arguments are invalid for the app's current tool."""
    problem: str = ""

    @property
    def differs(self) -> bool:
        """Whether the new verdict is different, or there is none."""
        return self.judgement is None or self.judgement.verdict is not self.recorded.plan.verdict


async def decided_again(
    loom: LoomClient, names: Sequence[str], changes: Changes, *, app: str | None
) -> dict[str, tuple[NewDecision, ...]]:
    """Return the decisions of each run, in order. The app's hooks and interceptors judge the calls as they do in a run.

    Raises BadRequest if a rule never matches, or if a run's history can't be read.
    """
    runs = [await run_named(loom, name) for name in names]
    recorded = {run_id: tuple(decisions_of(await loom.turns(run_id))) for run_id in runs}
    every = [each for decisions in recorded.values() for each in decisions]
    tools, agents = {each.call.name for each in every}, {each.spec.name for each in every}
    async with opened_checker(tools, agents, workspace=".", app=app) as checker:
        for spec in {each.spec.digest: each.spec for each in every}.values():
            try:
                checker.refuse_dead(changes.permissions, workspace=spec.workspace, others=spec.tools)
            except BadRequest as error:
                raise BadRequest(f"--permissions: {error.message}", field="permissions") from None

        async def decided(each: RecordedDecision) -> NewDecision:
            spec = each.spec.with_permissions(changes.permissions)
            try:
                checked = await checker.checked_as(
                    each.call, replace(spec, mode=changes.mode or spec.mode), each.grants
                )
            except BadRequest as error:
                return NewDecision(recorded=each, judgement=None, problem=error.message)
            return NewDecision(recorded=each, judgement=checked.judgement)

        return {run_id: tuple([await decided(each) for each in found]) for run_id, found in recorded.items()}


def rules_view(decided: Mapping[str, Sequence[NewDecision]]) -> dict[str, Any]:
    """Return the decisions that differ as JSON values."""
    runs = [
        {
            "run_id": run_id,
            "calls": len(decisions),
            "differences": [_difference_view(each) for each in decisions if each.differs],
        }
        for run_id, decisions in decided.items()
    ]
    return {"runs": runs}


def print_rules(decided: Mapping[str, Sequence[NewDecision]]) -> None:
    """Print the decisions that differ for people."""
    out = console()
    for run_id, decisions in decided.items():
        differing = [each for each in decisions if each.differs]
        said = counted(len(differing), "other decision") if differing else "the same decisions"
        out.print(f"{run_id}: {counted(len(decisions), 'call')}, {said}", soft_wrap=True)
        for each in differing:
            was = each.recorded
            now = "can't be judged here" if each.judgement is None else f"{each.judgement.verdict}"
            why = each.problem if each.judgement is None else each.judgement.reason
            out.print(
                f"  t{was.turn} {visible(one_line(describe(was.call)))}: {was.plan.verdict} → {now}", soft_wrap=True
            )
            out.print(f"     {visible(one_line(why, 300))} (recorded: {visible(was.plan.rule)})", soft_wrap=True)


def _difference_view(each: NewDecision) -> dict[str, Any]:
    plan, now = each.recorded.plan, each.judgement
    return {
        "turn": each.recorded.turn,
        "call_id": each.recorded.call.id,
        "tool": each.recorded.call.name,
        "arguments": each.recorded.call.arguments,
        "recorded": {"verdict": plan.verdict, "rule": plan.rule},
        "new": None if now is None else {"verdict": now.verdict, "rule": now.rule, "reason": now.reason},
        "problem": each.problem,
    }
