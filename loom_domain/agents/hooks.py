"""Hooks and interceptors that a user's module registers, and a hook's verdict on a tool call.

`on_start`, `on_planning` and `on_tool_call` hooks return `Deny`, `Ask`, or None if they have no objection. A hook can
only make a verdict stricter, so a call that the rules deny remains denied. If a hook fails or doesn't respond, the call
is denied.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from loom.domain.agents.definitions import AgentDefinition
from loom.domain.agents.hook_steps import DEFAULT_HOOK_TIMEOUT, HookPoint, Moment
from loom.domain.agents.inheritance import DEFAULT_AGENT
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject
from loom.domain.core.suggestions import nearest
from loom.domain.core.tool_calls import STRICTNESS, Verdict
from loom.domain.permissions.judge import Judgement


@dataclass(frozen=True, slots=True)
class Deny:
    """Deny the call."""

    reason: str
    """The reason, shown to the model."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Require a person's approval for the call."""

    reason: str
    """The reason, shown to the person."""


Answer: TypeAlias = Deny | Ask | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Objection:
    """A hook's verdict on a call."""

    hook: str
    answer: Deny | Ask

    @property
    def rule(self) -> str:
        """The text that is recorded in place of a rule. It contains the hook's name."""
        return f"hook {self.hook}"


def strictest(objections: Iterable[Objection]) -> Objection | None:
    """Return the first objection that denies the call, or else the first one that asks for approval, or else None."""
    raised = list(objections)
    return next((each for each in raised if isinstance(each.answer, Deny)), next(iter(raised), None))


def stricter_of(judged: Judgement, objection: Objection | None) -> Judgement:
    """Return the judgment of the rules or, if the objection is stricter, a judgment based on the objection."""
    if objection is None:
        return judged
    verdict = Verdict.DENY if isinstance(objection.answer, Deny) else Verdict.ASK
    if STRICTNESS.index(verdict) <= STRICTNESS.index(judged.verdict):
        return judged
    # An approval for the rest of the run adds rules. Hooks ignore rules, so the hook would ask again.
    return Judgement(verdict=verdict, rule=objection.rule, reason=objection.answer.reason, can_be_granted=False)


@dataclass(frozen=True, slots=True)
class Instead:
    """A result that an interceptor returns in place of the task's result. The task is skipped."""

    result: str
    """The text that callers and models read as the result."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunInfo:
    """The information that a hook receives about a run."""

    run_id: str
    """The run's id, which is also its Workflow ID."""
    agent: str
    """The name of the agent."""
    task: str
    """What the agent was asked to do."""
    session_id: str = ""
    """The run's session."""
    metadata: JsonObject = field(default_factory=dict)
    """The metadata of the request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hook:
    """A user's function that is called at one point in a run."""

    moment: Moment
    name: str
    function: Callable[..., Any]
    agents: tuple[str, ...] | None = None
    """The agents that the hook applies to, in addition to agents that name the hook. None means every agent."""
    tools: tuple[str, ...] | None = None
    """For a hook that is called before tool calls, the tools that it applies to. None means every tool."""
    timeout: float = DEFAULT_HOOK_TIMEOUT

    @property
    def moments(self) -> tuple[Moment, ...]:
        """The moments when the hook is called."""
        return (self.moment,)


RUN: Final = "run"
TOOL: Final = "tool"


@dataclass(frozen=True, kw_only=True, slots=True)
class Interceptor:
    """User code that runs before and after a task. `before` can change or stop the request, and `after` can change the
    result.
    """

    name: str
    before: Callable[..., Any] | None = None
    after: Callable[..., Any] | None = None
    around: tuple[str, ...] = (RUN, TOOL)
    agents: tuple[str, ...] | None = None
    timeout: float = DEFAULT_HOOK_TIMEOUT

    @property
    def moments(self) -> tuple[Moment, ...]:
        """The moments before and after a run when the interceptor is called."""
        sides = ((Moment.BEFORE, self.before), (Moment.AFTER, self.after))
        return tuple(moment for moment, side in sides if side is not None and RUN in self.around)


Registered: TypeAlias = Hook | Interceptor


def functions_of(registered: Registered) -> tuple[Callable[..., Any] | None, ...]:
    """Return the user-defined functions of a hook or an interceptor."""
    return (registered.function,) if isinstance(registered, Hook) else (registered.before, registered.after)


def applies_to(registered: Registered, agent: str, named: Iterable[str]) -> bool:
    """Whether a hook or an interceptor applies to this agent. An agent can name hooks and interceptors itself."""
    return registered.agents is None or agent in registered.agents or registered.name in named


def hook_names_for(registered: Sequence[Registered], agent: str, named: Sequence[str]) -> tuple[str, ...]:
    """Return the names of all hooks and interceptors that apply to an agent's runs and tool calls."""
    return tuple(dict.fromkeys(each.name for each in registered if applies_to(each, agent, named)))


def steps_of(registered: Sequence[Registered], agent: str, named: Sequence[str]) -> tuple[HookPoint, ...]:
    """Return the steps of all hooks and interceptors that apply to an agent. The steps are pinned into the agent's
    runs.
    """
    return tuple(
        HookPoint(moment=moment, name=each.name, timeout=each.timeout)
        for each in registered
        if applies_to(each, agent, named)
        for moment in each.moments
    )


def check_hooks(registered: Sequence[Registered], agents: Iterable[AgentDefinition]) -> None:
    """Raise BadRequest if a name is duplicated or unknown. For an unknown name, the message suggests the closest known
    name.
    """
    taken = [(moment, each.name) for each in registered for moment in each.moments]
    if twice := next((name for moment, name in taken if taken.count((moment, name)) > 1), None):
        raise BadRequest(
            f"two hooks for the same moment are named {twice!r}: rename one of them with `name=`", field="hooks"
        )
    known = sorted({each.name for each in registered})
    agents = list(agents)
    for agent in agents:
        for name in agent.hooks:
            if name not in known:
                hint = nearest(name, known, f"the hooks are {', '.join(known) or 'none'}")
                raise BadRequest(
                    f"agent {agent.name!r} ({agent.origin}) names the unknown hook {name!r}: {hint}",
                    field="hooks",
                )
    names = {DEFAULT_AGENT, *(agent.name for agent in agents)}
    for each in registered:
        if unknown := [name for name in each.agents or () if name not in names]:
            raise BadRequest(
                f"the hook {each.name!r} is for the unknown agent {unknown[0]!r}: the agents are"
                f" {', '.join(sorted(names))}",
                field="hooks",
            )
