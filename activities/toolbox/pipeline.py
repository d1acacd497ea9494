"""The six stages of a tool call: discover, validate, authorize, check-cancel, execute, format.

`plan` runs the first three stages when the model makes the call, and the outcome is recorded. `execute` runs all six
stages when the call is executed. `execute` doesn't judge the call again, because a person may have approved or rejected
the call in the meantime. A tool can't break the pipeline: every exception from a tool is converted to a result for the
model.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from time import perf_counter
from typing import Final

import structlog
from pydantic import BaseModel

from loom.activities.ports import MAX_GRANTS, Tool, ToolContext, ToolOutput, ToolSet
from loom.activities.toolbox.built_in.delegation import refuse_wrong_delegation
from loom.activities.toolbox.built_in.plan import refuse_wrong_plan
from loom.activities.toolbox.built_in.search_tools import SearchTools
from loom.activities.toolbox.built_in.shell import GRACE
from loom.activities.toolbox.error_reasons import reason_of
from loom.activities.toolbox.output_sanitizer import OutputSanitizer
from loom.activities.toolbox.truncation import RESULT_LIMIT
from loom.domain.agents.hooks import Objection, stricter_of
from loom.domain.agents.spec import AgentSpec
from loom.domain.core import tool_names
from loom.domain.core.argument_names import argument_name
from loom.domain.core.errors import (
    ExecutionAbortedError,
    LoomError,
    PermissionDeniedError,
    ToolExecutionTimeout,
    ToolNotFoundError,
    ToolUnavailableError,
    ToolValidationError,
)
from loom.domain.core.json_text import NotJson, read_arguments
from loom.domain.core.messages import JsonObject, ToolCall, ask_digest
from loom.domain.core.tasks import Origin
from loom.domain.core.tool_calls import (
    QUICK_READ,
    Effect,
    ErrorType,
    PreparedCall,
    ToolResult,
    ToolSpec,
    Verdict,
    failed,
)
from loom.domain.core.tool_names import ASK_USER, CALL_TOOL, DONE, MADE, SAMPLING, SEARCH_TOOLS
from loom.domain.permissions.judge import Judgement, Level, judge_under
from loom.domain.permissions.obeyed import NO_FILES, WorkerFiles
from loom.domain.permissions.patterns import escaped
from loom.domain.permissions.rules import Kind, kind_of
from loom.domain.permissions.subjects import Place, Subject, normal

_log = structlog.get_logger("loom.tool")

_ERROR_TYPES: Final[dict[type[LoomError], ErrorType]] = {
    ToolNotFoundError: "not_found",
    ToolUnavailableError: "unavailable",
    ToolValidationError: "validation",
    ToolExecutionTimeout: "timeout",
    PermissionDeniedError: "permission",
    ExecutionAbortedError: "aborted",
}


def plan(
    call: ToolCall,
    *,
    box: ToolSet,
    spec: AgentSpec,
    grants: Sequence[str],
    origin: Origin,
    turn: int,
    agents: Sequence[str] = (),
    objection: Objection | None = None,
    may_be_quick: bool = False,
    obeyed: WorkerFiles = NO_FILES,
    own: AgentSpec | None = None,
) -> PreparedCall:
    """Prepare a call: look up its tool, validate its arguments, and apply the rules.

    `grants` contains allow rules that a person granted for the run, `agents` contains the agents that work can be
    delegated to, and `objection` is the verdict of the user's hooks. `may_be_quick` says whether an allowed call may
    run in the activity that called the model. `obeyed` contains the files that this worker reads. `own` is the agent as
    this worker defines it, if what its rules don't allow needs a proven approval.
    """
    pinned = next((tool for tool in spec.tools if tool.name == call.name), None)
    limits = PreparedCall() if pinned is None else _limits(pinned)
    try:
        tool = _discover(call, box, [tool.name for tool in spec.tools], spec.on_demand)
        arguments = _validate(call, tool)
        if isinstance(arguments, SearchTools):
            limits = replace(limits, found=arguments.found_in(spec))
        _refuse_impossible(call, arguments, spec, agents)
        authorized = authorize(call, tool, arguments, spec, grants, obeyed=obeyed, own=own)
        if objection is not None:
            authorized = replace(authorized, judgement=stricter_of(authorized.judgement, objection))
        judged = authorized.judgement
        # For an allowed call, recording the rule is enough. An additional sentence would enlarge the history in every
        # turn of every run.
        reason = "" if judged.verdict is Verdict.ALLOW else judged.reason
        made = replace(limits, verdict=judged.verdict, rule=judged.rule, reason=reason)
        made = replace(made, timeout=_timeout(tool, arguments, limits.timeout, spec.timeout_of(call.name)))
        if server := getattr(tool, "sampling_server", ""):
            made = replace(made, sampling=_judge_sampling(server, spec, grants))
        if may_be_quick and judged.verdict is Verdict.ALLOW and _is_quick(tool, made):
            return replace(made, effect=QUICK_READ)
        if judged.verdict is not Verdict.ASK:
            return made
        return replace(
            made,
            digest=ask_digest(origin.run_id, origin.execution, turn, call, reset_at=origin.reset_at),
            grants=authorized.grants(tool, arguments),
        )
    except LoomError as error:
        return replace(limits, error=error.message, error_type=_error_type(error))
    except Exception as error:  # noqa: BLE001 - see the module's docstring
        _log.exception("tool_plan_failed", tool=call.name)
        return replace(limits, error=_unexpected(error), error_type="unknown")


async def execute(
    call: ToolCall,
    *,
    box: ToolSet,
    context: ToolContext,
    sanitizer: OutputSanitizer,
    is_cancelled: Callable[[], bool],
    note: str = "",
    after: Callable[[ToolResult], Awaitable[ToolResult]] | None = None,
) -> ToolResult:
    """Run one call through all stages. Raises no exception except cancellation.

    `after` applies the user's interceptors to the result.
    """
    watch = _Watch()
    limit = RESULT_LIMIT
    try:
        with watch.stage():
            tool = _discover(call, box, sorted(box))
            limit = getattr(tool, "max_output", RESULT_LIMIT)
        with watch.stage():
            arguments = _validate(call, tool)
        with watch.stage():
            pass  # authorize: this was decided when the call was prepared, or later by a person
        with watch.stage():
            _check(is_cancelled)
        with watch.stage():
            came = await _run(tool, arguments, context)
        output = came if isinstance(came, ToolOutput) else ToolOutput(text=came)
        if output.needs is not None:
            return ToolResult(content="", needs=output.needs, stage_ms=tuple(watch.spent))
        result = ToolResult(
            content=output.text,
            parts=output.parts,
            status="warning" if output.is_warning else "success",
            session=output.session,
        )
    except LoomError as error:
        session = str(error.context.get("session", ""))
        result = replace(failed(error.message, _error_type(error)), session=session)
    except Exception as error:  # noqa: BLE001 - see the module's docstring
        _log.exception("tool_failed", tool=call.name)
        result = failed(_unexpected(error), "unknown")
    if after is not None:
        result = await after(result)
    # If a stage wasn't reached, it has no duration. Errors are also sanitized, but this isn't part of the six stages.
    with watch.stage() if result.status != "error" else nullcontext():
        clean = await sanitizer.sanitize(result.content, context, limit=limit, note=note)
    return replace(
        result,
        content=clean.text,
        artifact=clean.artifact,
        length=clean.length,
        stage_ms=tuple(watch.spent),
    )


def written_paths(call: ToolCall, *, box: ToolSet, workspace: Path) -> frozenset[str]:
    """Return the absolute paths that a call may write, as far as its arguments name them. Those of commands in the
    sandbox are left out, because the sandbox protects the worker's own files, and looking for paths takes time.
    """
    tool = box.get(call.name)
    if tool is None or getattr(tool, "is_sandboxed", False):
        return frozenset()
    try:
        subjects = tool.subjects(tool.parse(call.arguments), workspace)
    except Exception:  # noqa: BLE001 - the call fails for the same reason, and `execute` reports it
        return frozenset()
    files = (file for subject in subjects for file in (*subject.files, *subject.mentions) if file.tool != "read_file")
    paths = (*(subject.loose for subject in subjects), *(file.loose for file in files))
    return frozenset(normal(path) for path in paths if path.startswith("/"))


@dataclass(slots=True)
class _Watch:
    """Milliseconds spent in each stage, including a stage that fails."""

    spent: list[float] = field(default_factory=list)

    @contextmanager
    def stage(self) -> Iterator[None]:
        """Measure one stage."""
        begun = perf_counter()
        try:
            yield
        finally:
            self.spent.append(round((perf_counter() - begun) * 1000, 2))


def _limits(pinned: ToolSpec) -> PreparedCall:
    return PreparedCall(
        effect=pinned.effect,
        parallel=pinned.parallel,
        timeout=pinned.timeout,
        queue=pinned.queue,
    )


def _is_quick(tool: Tool, made: PreparedCall) -> bool:
    return getattr(tool, "quick", False) and made.effect is Effect.READ and made.parallel and made.queue is None


def _discover(call: ToolCall, box: ToolSet, names: Sequence[str], on_demand: Collection[str] = ()) -> Tool:
    if call.name == CALL_TOOL:
        raise ToolValidationError(f"{CALL_TOOL} needs `name`, the name of a tool, and `arguments`, an object for it")
    tool = box.get(call.name)
    if tool is None and call.name in names:
        raise ToolNotFoundError(
            f"the worker no longer has the tool {call.name!r}, which it had when the run began: use another one"
        )
    if tool is None or call.name not in names:
        known = ", ".join(name for name in names if name not in on_demand) or "none"
        known += f"; {SEARCH_TOOLS} finds more" if on_demand else ""
        near = get_close_matches(call.name, names, n=3)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ToolNotFoundError(f"there is no tool {call.name!r}: {hint}The tools are: {known}")
    if (missing := tool.is_available()) is not None:
        raise ToolUnavailableError(f"{call.name} cannot be used: {missing}")
    return tool


def _validate(call: ToolCall, tool: Tool) -> object:
    if call.malformed is not None:
        names = ", ".join(tool.spec.parameters.get("properties", {}))
        raise ToolValidationError(
            f"the arguments of {call.name} are not a JSON object but {_snippet(call.malformed)}: "
            f"{_cause(call.malformed)}send one complete JSON object with {names or 'nothing in it'}"
        )
    return tool.parse(call.arguments)


def _cause(malformed: str) -> str:
    try:
        read_arguments(malformed)
    except NotJson as error:
        return f"{error}; "
    return ""  # an earlier release couldn't read them


def _refuse_impossible(call: ToolCall, arguments: object, spec: AgentSpec, agents: Sequence[str]) -> None:
    """Reject valid arguments that this run can't carry out."""
    match call.name:
        case tool_names.CREATE_TOOL:
            _refuse_taken_name(call, spec)
        case tool_names.DELEGATE:
            refuse_wrong_delegation(call, arguments, spec, agents)
        case tool_names.CREATE_PLAN:
            refuse_wrong_plan(call, arguments, spec, agents)


def _refuse_taken_name(call: ToolCall, spec: AgentSpec) -> None:
    """Reject a created tool whose name is taken, because a grant for one created tool must not apply to another tool
    with the same name.
    """
    name = f"{MADE}{call.arguments.get('name')}"
    if any(tool.name == name for tool in spec.tools):
        raise ToolValidationError(f"there is a tool {name} already: choose another name")


def _snippet(text: str) -> str:
    """Return a short text as it is. A long one isn't cut, because a cut secret would no longer be masked."""
    return repr(text) if len(text) <= 80 else f"a text of {len(text):,} characters"


def _timeout(tool: Tool, arguments: object, default: float, of_agent: float | None) -> float:
    """Return the call's timeout. If the agent or the call sets one, add time for stopping the call. A call can't have
    more time than its agent.
    """
    if of_agent is not None:
        return of_agent + float(getattr(tool, "grace", 0.0))
    wanted = getattr(arguments, "timeout", None)
    return max(default, wanted + GRACE) if isinstance(wanted, int | float) else default


def _check(is_cancelled: Callable[[], bool]) -> None:
    if is_cancelled():
        raise ExecutionAbortedError("the run was stopped before this call began: nothing was done")


async def _run(tool: Tool, arguments: object, context: ToolContext) -> str | ToolOutput:
    try:
        async with asyncio.timeout(context.timeout) as limit:
            return await tool.run(arguments, context)
    except TimeoutError:
        if not limit.expired():
            raise
        raise ToolExecutionTimeout(
            f"{tool.spec.name} was stopped after {context.timeout:g} s: do less in one call, or use another tool"
        ) from None


def _error_type(error: LoomError) -> ErrorType:
    return next((name for kind, name in _ERROR_TYPES.items() if isinstance(error, kind)), "execution")


def _unexpected(error: Exception) -> str:
    return f"{reason_of(error)}; this is a fault of the tool: try another way"


@dataclass(frozen=True, kw_only=True, slots=True)
class Authorized:
    """The verdict and its inputs."""

    judgement: Judgement
    subjects: Sequence[Subject]
    arguments: JsonObject
    place: Place

    def grants(self, tool: Tool, arguments: object) -> tuple[str, ...]:
        """Return the rules that an approval for the run adds. If a scoped ask rule or a guard required the approval,
        only this exact call can be granted.
        """
        return _grants(self, tool, arguments)


def authorize(
    call: ToolCall,
    tool: Tool | None,
    arguments: object,
    spec: AgentSpec,
    grants: Sequence[str] = (),
    *,
    obeyed: WorkerFiles = NO_FILES,
    own: AgentSpec | None = None,
    judging: Callable[..., Judgement] = judge_under,
) -> Authorized:
    """Judge a call with valid arguments. For an unknown tool, patterns can't match. `own` is explained in `plan`, and
    `judging` is `judge_by_hand` if a person makes the call.
    """
    place = Place(workspace=spec.workspace, home=str(Path.home()), obeyed=obeyed)
    subjects = tool.subjects(arguments, Path(spec.workspace)) if tool else ()
    given = _validated(arguments, call)
    if call.name in (DONE, ASK_USER, SEARCH_TOOLS):
        judged = Judgement(verdict=Verdict.ALLOW, rule="built-in", reason=f"a run may always call {call.name}")
        return Authorized(judgement=judged, subjects=subjects, arguments=given, place=place)
    pinned = _pinned(call.name, tool, spec)
    judged = judging(
        call.name,
        subjects,
        chain_of(spec, grants),
        arguments=given,
        reads=pinned is not None and pinned.effect is Effect.READ,
        declared=pinned.declared if pinned else None,
        place=place,
    )
    if own is not None and tool is not None and judged.verdict is Verdict.ALLOW:
        own = replace(own, workspace=spec.workspace)
        judged = _within_own_rules(judged, judged_by_own_rules(call, tool, own, grants, obeyed=obeyed))
    return Authorized(judgement=judged, subjects=subjects, arguments=given, place=place)


def judged_by_own_rules(
    call: ToolCall, tool: Tool, own: AgentSpec, grants: Sequence[str], *, obeyed: WorkerFiles = NO_FILES
) -> Judgement | None:
    """Judge a call by the rules of an agent as this worker defines it, whatever is pinned to the run. Return None if
    the arguments are invalid, so that the tool can't run.
    """
    try:
        arguments = tool.parse(call.arguments)
    except Exception:  # noqa: BLE001 - `execute` reports it
        return None
    return authorize(call, tool, arguments, replace(own, tools=(), above=()), grants, obeyed=obeyed).judgement


def _within_own_rules(allowed: Judgement, own: Judgement | None) -> Judgement:
    """Return an ask instead of an allow if the worker's own rules don't allow the call."""
    if own is None or own.verdict is Verdict.ALLOW:
        return allowed
    reason = f"{own.reason}, and here only a proven approval can allow more than the agent's definition does"
    can_be_granted = own.can_be_granted and own.verdict is Verdict.ASK
    return replace(own, verdict=Verdict.ASK, reason=reason, can_be_granted=can_be_granted)


def _judge_sampling(server: str, spec: AgentSpec, grants: Sequence[str]) -> Verdict:
    """Judge the model calls that an MCP server may ask for during a call. A rule's pattern names the server."""
    place = Place(workspace=spec.workspace, home=str(Path.home()))
    return judge_under(SAMPLING, (Subject(text=server),), chain_of(spec, grants), arguments={}, place=place).verdict


def chain_of(spec: AgentSpec, grants: Sequence[str]) -> tuple[Level, ...]:
    """Return the permission levels that judge a call. A run's grants also apply to its ancestors' levels."""
    above = (replace(level, grants=(*level.grants, *grants)) for level in spec.above)
    return (*above, Level(whose=spec.name, rules=spec.permissions, mode=spec.mode, grants=tuple(grants)))


def _pinned(name: str, tool: Tool | None, spec: AgentSpec) -> ToolSpec | None:
    """Return the tool as it was when the run started, not this worker's current version."""
    pinned = next((each for each in spec.tools if each.name == name), None)
    return pinned or (tool.spec if tool else None)


def _validated(arguments: object, call: ToolCall) -> JsonObject:
    """Return the arguments in the form that the tool receives, so that an alternative spelling of a value can't evade a
    rule. If the model sees an argument under another name than the tool, rules may use either name.
    """
    match arguments:
        case BaseModel():
            received: JsonObject = arguments.model_dump(mode="json")
        case dict():
            received = arguments
        case _:
            return call.arguments
    return {**{argument_name(name): value for name, value in received.items()}, **received}


def _grants(made: Authorized, tool: Tool, arguments: object) -> tuple[str, ...]:
    judged = made.judgement
    if judged.verdict is not Verdict.ASK or not judged.can_be_granted:
        return ()
    if "(" not in judged.rule and not judged.is_guarded:
        return tuple(tool.grants(arguments))[:MAX_GRANTS]
    needed = [subject for subject in made.subjects if subject.words or not subject.passive]
    if any(subject.opaque or (None in subject.words and not subject.passive) for subject in needed):
        return ()
    exact = tuple(dict.fromkeys(_exact(tool.spec.name, subject) for subject in needed))
    # If only some of the grants were offered, the same call would need approval again, which is worse than offering
    # none.
    return exact if len(exact) <= MAX_GRANTS else ()


def _exact(tool: str, subject: Subject) -> str:
    special = "*?[~" if kind_of(tool) is Kind.PATH else "*"
    return f"{tool}({escaped(subject.text, special)})"
