"""Apply interceptors to tool calls: in order before the rules judge a call, and in reverse order to its result.

Hooks, rules and people judge the call that an interceptor returns, and exactly this call runs. The returned call is
recorded with the prepared call, so an approval covers exactly this call. An interceptor that fails in `before` stops
the call. An interceptor that fails in `after` withholds the result.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from loom.activities.toolbox.hooks import FREE, answer_of
from loom.domain.agents.hooks import TOOL, Deny, Instead, Interceptor, Registered
from loom.domain.core.errors import HookFailedError
from loom.domain.core.messages import ToolCall, canonical
from loom.domain.core.tasks import Action, Origin, Task, task_of
from loom.domain.core.tool_calls import PreparedCall, ToolResult, Verdict, failed


@dataclass(frozen=True, kw_only=True, slots=True)
class Intercepted:
    """A tool call after all interceptors have processed it."""

    call: ToolCall
    by: str = ""
    """The last interceptor that changed, answered or stopped the call."""
    answer: str | None = None
    stopped: str = ""

    def laid_on(self, plan: PreparedCall, asked: ToolCall) -> PreparedCall:
        """Return the prepared call with the interceptors' changes applied."""
        if self.stopped:
            return replace(plan, stopped=self.stopped, interceptor=self.by)
        if self.answer is not None and plan.verdict is not Verdict.DENY and not plan.error:
            # No tool runs, so no approval is needed.
            return replace(plan, verdict=Verdict.ALLOW, answer=self.answer, interceptor=self.by, digest="", grants=())
        if canonical(self.call.arguments) != canonical(asked.arguments):
            return replace(plan, arguments=self.call.arguments, interceptor=self.by)
        return plan


async def before_call(call: ToolCall, run_id: str, agent: str, registered: Sequence[Registered]) -> Intercepted:
    """Apply all interceptors to the call, in order, and return the outcome. Raises no exception except cancellation."""
    met = Intercepted(call=call)
    passed: list[Interceptor] = []
    for each in _around_tools(call, registered):
        try:
            met = await _before(each, met, run_id, agent)
            if met.answer is not None:
                answer = await _backwards(passed, met.call, met.answer, run_id, agent)
                return replace(met, answer=answer)
        except HookFailedError as error:
            return replace(met, by=each.name, stopped=f"the interceptor {each.name} blocks this call: {error.message}")
        if met.stopped:
            return met
        passed.append(each)
    return met


async def after_call(
    call: ToolCall, result: ToolResult, run_id: str, agent: str, registered: Sequence[Registered]
) -> ToolResult:
    """Apply all interceptors to the result, in reverse order, and return the outcome."""
    chain = _around_tools(call, registered)
    if not any(each.after for each in chain):
        return result
    try:
        content = await _backwards(chain, call, result.content, run_id, agent)
    except HookFailedError as error:
        return failed(
            f"The call was carried out, but its result is withheld: {error.message}. Check what is there before you"
            " go on.",
            "unknown",
        )
    return replace(result, content=content)


def changes_results(registered: Sequence[Registered]) -> str:
    """Return the name of an interceptor that may change results of tools, or an empty string."""
    return next((each.name for each in _around_all_tools(registered) if each.after is not None), "")


def _around_all_tools(registered: Sequence[Registered]) -> list[Interceptor]:
    return [each for each in registered if isinstance(each, Interceptor) and TOOL in each.around]


def _around_tools(call: ToolCall, registered: Sequence[Registered]) -> list[Interceptor]:
    if call.name in FREE:
        return []
    return _around_all_tools(registered)


async def _before(each: Interceptor, met: Intercepted, run_id: str, agent: str) -> Intercepted:
    if each.before is None:
        return met
    answer = await answer_of(each.name, each.before, _task(met.call, run_id, agent), patience=each.timeout)
    match answer:
        case None:
            return met
        case Deny(reason=reason):
            return replace(met, by=each.name, stopped=reason)
        case Instead(result=result):
            return replace(met, by=each.name, answer=str(result))
        case Task(parameters={"arguments": dict(arguments)}):
            changed = replace(met.call, arguments=arguments, malformed=None)
            return replace(met, by=each.name, call=changed) if arguments != met.call.arguments else met
        case _:
            raise HookFailedError(f"it returned {answer!r:.200} instead of None, a Task, Instead or Deny")


async def _backwards(chain: Sequence[Interceptor], call: ToolCall, content: str, run_id: str, agent: str) -> str:
    for each in reversed(chain):
        if each.after is None:
            continue
        task = _task(call, run_id, agent)
        try:
            content = checked_text(
                await answer_of(each.name, each.after, task, content, patience=each.timeout), content
            )
        except HookFailedError as error:
            raise HookFailedError(f"the interceptor {each.name} blocks it: {error.message}") from None
    return content


def checked_text(answer: Any, before: str) -> str:
    """Return the text that `after` returned. None leaves the text unchanged."""
    if answer is None:
        return before
    if not isinstance(answer, str):
        raise HookFailedError(f"it returned {answer!r:.200} instead of None or a text")
    return answer


def _task(call: ToolCall, run_id: str, agent: str) -> Task:
    return task_of(
        Origin(run_id=run_id, agent=agent),
        Action.TOOL_CALL,
        f"intercepted-{call.id}",
        at=datetime.now(UTC),
        parameters={"tool": call.name, "call_id": call.id, "arguments": dict(call.arguments)},
    )
