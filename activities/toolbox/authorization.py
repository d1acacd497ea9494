"""The third stage of a tool call: what the rules say of it. The runtime and `loom permissions check` both ask here."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from loom.activities.ports import Tool
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.messages import JsonObject, ToolCall
from loom.domain.core.tool_calls import Effect, ToolSpec, Verdict
from loom.domain.core.tool_names import ASK_USER, DONE
from loom.domain.permissions.judge import GUARD, Judgement, Level, judge_under
from loom.domain.permissions.patterns import escaped
from loom.domain.permissions.rules import Kind, kind_of
from loom.domain.permissions.subjects import Place, Subject

MAX_GRANTS: Final = 5
"""Rules that one approval may add."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Authorized:
    """The judgement and what it was made of."""

    judgement: Judgement
    subjects: Sequence[Subject]
    arguments: JsonObject
    place: Place

    def grants(self, tool: Tool, arguments: object) -> tuple[str, ...]:
        """What approving for the run adds: after a scoped ask or a guard exactly this, or nothing."""
        return _grants(self, tool, arguments)


def authorize(
    call: ToolCall, tool: Tool | None, arguments: object, spec: AgentSpec, grants: Sequence[str] = ()
) -> Authorized:
    """Judge a call whose arguments are valid; of a tool that is not known here no pattern can mean anything."""
    place = Place(workspace=spec.workspace, home=str(Path.home()))
    subjects = tool.subjects(arguments, Path(spec.workspace)) if tool else ()
    given = _validated(arguments, call)
    if call.name in (DONE, ASK_USER):
        judged = Judgement(verdict=Verdict.ALLOW, rule="built-in", reason="a run may always end itself, or ask")
        return Authorized(judgement=judged, subjects=subjects, arguments=given, place=place)
    pinned = _pinned(call.name, tool, spec)
    judged = judge_under(
        call.name,
        subjects,
        chain_of(spec, grants),
        arguments=given,
        reads=pinned is not None and pinned.effect is Effect.READ,
        declared=pinned.declared if pinned else None,
        place=place,
    )
    return Authorized(judgement=judged, subjects=subjects, arguments=given, place=place)


def chain_of(spec: AgentSpec, grants: Sequence[str]) -> tuple[Level, ...]:
    """The levels that a call is judged by; what a person grants the run holds against those above it as well."""
    above = (replace(level, grants=(*level.grants, *grants)) for level in spec.above)
    return (*above, Level(whose=spec.name, rules=spec.permissions, mode=spec.mode, grants=tuple(grants)))


def _pinned(name: str, tool: Tool | None, spec: AgentSpec) -> ToolSpec | None:
    """The tool as the run began with it, not as this worker has it now."""
    pinned = next((each for each in spec.tools if each.name == name), None)
    return pinned or (tool.spec if tool else None)


def _validated(arguments: object, call: ToolCall) -> JsonObject:
    """The arguments as the tool will get them, so that no other spelling of a value slips past a rule."""
    if isinstance(arguments, BaseModel):
        return arguments.model_dump(mode="json")
    return call.arguments


def _grants(made: Authorized, tool: Tool, arguments: object) -> tuple[str, ...]:
    judged = made.judgement
    if judged.verdict is not Verdict.ASK or not judged.can_be_granted:
        return ()
    if "(" not in judged.rule and not judged.rule.startswith(GUARD):
        return tuple(tool.grants(arguments))[:MAX_GRANTS]
    if any(subject.opaque for subject in made.subjects):
        return ()
    exact = tuple(dict.fromkeys(_exact(tool.spec.name, subject) for subject in made.subjects))
    # A part of them would leave the rest asked: worse than no offer.
    return exact if len(exact) <= MAX_GRANTS else ()


def _exact(tool: str, subject: Subject) -> str:
    special = "*?[~" if kind_of(tool) is Kind.PATH else "*"
    return f"{tool}({escaped(subject.text, special)})"
