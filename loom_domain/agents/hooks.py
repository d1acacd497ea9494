"""Hooks and interceptors as a user's module registers them, and the verdict of a hook on a tool call.

`on_start`, `on_planning` and `on_tool_call` return None (no objection), `Deny` or `Ask`. They can only make a verdict
stricter: what the rules deny stays denied. A hook that fails, or does not respond, denies the call.
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
    """The call must not run."""

    reason: str
    """Shown to the model."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A person has to approve the call."""

    reason: str
    """Shown to the person."""


Answer: TypeAlias = Deny | Ask | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Objection:
    """A hook's verdict on a call."""

    hook: str
    answer: Deny | Ask

    @property
    def rule(self) -> str:
        """Recorded in place of a rule."""
        return f"hook {self.hook}"


def strictest(objections: Iterable[Objection]) -> Objection | None:
    """The first denial, else the first ask, else none."""
    raised = list(objections)
    return next((each for each in raised if isinstance(each.answer, Deny)), next(iter(raised), None))


def stricter_of(judged: Judgement, objection: Objection | None) -> Judgement:
    """The verdict of the rules, or the objection if that is stricter."""
    if objection is None:
        return judged
    verdict = Verdict.DENY if isinstance(objection.answer, Deny) else Verdict.ASK
    if STRICTNESS.index(verdict) <= STRICTNESS.index(judged.verdict):
        return judged
    # An approval for the rest of the run adds rules, and a hook ignores rules: it would ask again.
    return Judgement(verdict=verdict, rule=objection.rule, reason=objection.answer.reason, can_be_granted=False)


@dataclass(frozen=True, slots=True)
class Instead:
    """An interceptor's own result: the task does not take place."""

    result: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RunInfo:
    """What a hook receives about its run."""

    run_id: str
    agent: str
    task: str
    session_id: str = ""
    metadata: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hook:
    """A user's function that is called at one moment."""

    moment: Moment
    name: str
    function: Callable[..., Any]
    agents: tuple[str, ...] | None = None
    """Applies to these agents and to those that name the hook; None: to every agent."""
    tools: tuple[str, ...] | None = None
    """Before a tool call: only for these tools."""
    timeout: float = DEFAULT_HOOK_TIMEOUT

    @property
    def moments(self) -> tuple[Moment, ...]:
        """When it is called."""
        return (self.moment,)


RUN: Final = "run"
TOOL: Final = "tool"


@dataclass(frozen=True, kw_only=True, slots=True)
class Interceptor:
    """A user's code around tasks: `before` may change or stop the request, `after` may change the result."""

    name: str
    before: Callable[..., Any] | None = None
    after: Callable[..., Any] | None = None
    around: tuple[str, ...] = (RUN, TOOL)
    agents: tuple[str, ...] | None = None
    timeout: float = DEFAULT_HOOK_TIMEOUT

    @property
    def moments(self) -> tuple[Moment, ...]:
        """When it is called around a run."""
        sides = ((Moment.BEFORE, self.before), (Moment.AFTER, self.after))
        return tuple(moment for moment, side in sides if side is not None and RUN in self.around)


Registered: TypeAlias = Hook | Interceptor


def functions_of(registered: Registered) -> tuple[Callable[..., Any] | None, ...]:
    """The user's own code in it."""
    return (registered.function,) if isinstance(registered, Hook) else (registered.before, registered.after)


def applies_to(registered: Registered, agent: str, named: Iterable[str]) -> bool:
    """Whether a hook or an interceptor applies to this agent, which names some of them itself."""
    return registered.agents is None or agent in registered.agents or registered.name in named


def hook_names_for(registered: Sequence[Registered], agent: str, named: Sequence[str]) -> tuple[str, ...]:
    """The names of all hooks and interceptors of an agent, around its runs and around its tool calls."""
    return tuple(dict.fromkeys(each.name for each in registered if applies_to(each, agent, named)))


def steps_of(registered: Sequence[Registered], agent: str, named: Sequence[str]) -> tuple[HookPoint, ...]:
    """All of these that apply to an agent, to be pinned into its runs."""
    return tuple(
        HookPoint(moment=moment, name=each.name, timeout=each.timeout)
        for each in registered
        if applies_to(each, agent, named)
        for moment in each.moments
    )


def check_hooks(registered: Sequence[Registered], agents: Iterable[AgentDefinition]) -> None:
    """Reject duplicate and unknown names; raises BadRequest with the nearest one."""
    taken = [(moment, each.name) for each in registered for moment in each.moments]
    if twice := next((name for moment, name in taken if taken.count((moment, name)) > 1), None):
        raise BadRequest(
            f"two hooks for one moment are called {twice!r}: give one another name with `name=`", field="hooks"
        )
    known = sorted({each.name for each in registered})
    agents = list(agents)
    for agent in agents:
        for name in agent.hooks:
            if name not in known:
                hint = nearest(name, known, f"the hooks are {', '.join(known) or 'none'}")
                raise BadRequest(
                    f"agent {agent.name!r} ({agent.origin}) names the hook {name!r}, which is not there: {hint}",
                    field="hooks",
                )
    names = {DEFAULT_AGENT, *(agent.name for agent in agents)}
    for each in registered:
        if unknown := [name for name in each.agents or () if name not in names]:
            raise BadRequest(
                f"the hook {each.name!r} is for the agent {unknown[0]!r}, which is not there: the agents are"
                f" {', '.join(sorted(names))}",
                field="hooks",
            )
