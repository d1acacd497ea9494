"""Hooks and interceptors as a user's module registers them, and what a hook may have against a tool call.

A gate (`on_start`, `on_planning`, `on_tool_call`) answers None (no objection), `Deny` or `Ask`. It can only make a
verdict stricter: what the rules deny stays denied, whatever a hook says. A gate that fails or does not answer objects.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from loom.domain.agents.definitions import AgentDefinition
from loom.domain.agents.hook_steps import DEFAULT_HOOK_TIMEOUT, HookStep, Moment
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
    """The model reads it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A person has to allow the call."""

    reason: str
    """The person reads it."""


Answer: TypeAlias = Deny | Ask | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Objection:
    """What a hook has against a call."""

    hook: str
    answer: Deny | Ask

    @property
    def rule(self) -> str:
        """As it is recorded in the place of a rule."""
        return f"hook {self.hook}"


def strictest(objections: Iterable[Objection]) -> Objection | None:
    """The first denial, else the first ask, else none."""
    raised = list(objections)
    return next((each for each in raised if isinstance(each.answer, Deny)), next(iter(raised), None))


def stricter_of(judged: Judgement, objection: Objection | None) -> Judgement:
    """The verdict of the rules, or the objection where that is stricter."""
    if objection is None:
        return judged
    verdict = Verdict.DENY if isinstance(objection.answer, Deny) else Verdict.ASK
    if STRICTNESS.index(verdict) <= STRICTNESS.index(judged.verdict):
        return judged
    # An approval for the rest of the run adds rules, and no rule answers a hook: it would be asked again.
    return Judgement(verdict=verdict, rule=objection.rule, reason=objection.answer.reason, can_be_granted=False)


@dataclass(frozen=True, slots=True)
class Instead:
    """What an interceptor has in the place of a result: the task does not take place."""

    result: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RunInfo:
    """What a hook is told of the run that it stands beside."""

    run_id: str
    agent: str
    task: str
    session_id: str = ""
    metadata: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hook:
    """A function of a user's that is asked, or told, at one moment."""

    moment: Moment
    name: str
    function: Callable[..., Any]
    agents: tuple[str, ...] | None = None
    """For these agents, and those that name the hook; None: for every agent."""
    tools: tuple[str, ...] | None = None
    """Before a tool call: only of these tools."""
    timeout: float = DEFAULT_HOOK_TIMEOUT

    @property
    def moments(self) -> tuple[Moment, ...]:
        """When it is due."""
        return (self.moment,)


RUN: Final = "run"
TOOL: Final = "tool"


@dataclass(frozen=True, kw_only=True, slots=True)
class Interceptor:
    """A user's code around tasks: `before` may change what is asked or stop it, `after` may change what comes of it."""

    name: str
    before: Callable[..., Any] | None = None
    after: Callable[..., Any] | None = None
    around: tuple[str, ...] = (RUN, TOOL)
    agents: tuple[str, ...] | None = None
    timeout: float = DEFAULT_HOOK_TIMEOUT

    @property
    def moments(self) -> tuple[Moment, ...]:
        """When it is due around a run."""
        sides = ((Moment.BEFORE, self.before), (Moment.AFTER, self.after))
        return tuple(moment for moment, side in sides if side is not None and RUN in self.around)


Registered: TypeAlias = Hook | Interceptor


def functions_of(registered: Registered) -> tuple[Callable[..., Any] | None, ...]:
    """A user's own code in it."""
    return (registered.function,) if isinstance(registered, Hook) else (registered.before, registered.after)


def applies_to(registered: Registered, agent: str, named: Iterable[str]) -> bool:
    """Whether a hook or an interceptor is one of this agent's, which names some of them itself."""
    return registered.agents is None or agent in registered.agents or registered.name in named


def hook_names_for(registered: Sequence[Registered], agent: str, named: Sequence[str]) -> tuple[str, ...]:
    """The names of all hooks and interceptors that an agent has, around its runs and around its tool calls."""
    return tuple(dict.fromkeys(each.name for each in registered if applies_to(each, agent, named)))


def steps_of(registered: Sequence[Registered], agent: str, named: Sequence[str]) -> tuple[HookStep, ...]:
    """Everything of these that an agent has, to be pinned into its runs."""
    return tuple(
        HookStep(moment=moment, name=each.name, timeout=each.timeout)
        for each in registered
        if applies_to(each, agent, named)
        for moment in each.moments
    )


def check_hooks(registered: Sequence[Registered], agents: Iterable[AgentDefinition]) -> None:
    """Refuse names given twice, and names that nobody has; raises BadRequest with the nearest one."""
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
