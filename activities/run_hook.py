"""The `run_hook` activity: call one of the user's hooks, or one side of an interceptor, before or after a run."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

import structlog
from temporalio import activity

from loom.activities.failures import to_application_error
from loom.activities.manifest import Manifests
from loom.activities.ports import EventStream
from loom.activities.publish import StreamWriter, heartbeating, stream_writer
from loom.activities.toolbox.hooks import answer_of
from loom.activities.toolbox.interceptors import checked_text
from loom.domain.agents.hook_steps import HookResult, Moment
from loom.domain.agents.hooks import Ask, Deny, Hook, Instead, Interceptor, Registered, RunInfo
from loom.domain.core.errors import HookFailedError, ManifestChangedError
from loom.domain.core.tasks import Action, Task, task_of
from loom.domain.run.activity_payloads import HookRequest
from loom.domain.run.stream_events import StreamEvent, hook_asked, milliseconds

_log = structlog.get_logger("loom.hook")


class HookRunner:
    """Calls user code before and after runs."""

    def __init__(
        self,
        *,
        registered: Sequence[Registered],
        stream: EventStream,
        redact: Callable[[str], str],
        manifests: Manifests,
    ) -> None:
        self._registered = registered
        self._stream = stream
        self._redact = redact
        self._manifests = manifests

    @activity.defn(name="run_hook")
    async def run_hook(self, request: HookRequest) -> HookResult:
        """Call the hook. Raises HookFailedError as an application failure if the hook returns no valid result."""
        step = request.step
        started = perf_counter()
        with structlog.contextvars.bound_contextvars(**request.origin.log_ids, hook=step.name):
            async with heartbeating(), stream_writer(self._stream, request.origin, request.turn) as writer:
                writer.notices(request.notices)
                try:
                    await self._manifests.check_only(step.name, request.spec_digest, request.origin.run_id, writer)
                    answer = await self._answer(request)
                except (HookFailedError, ManifestChangedError) as error:
                    _report(writer, hook_asked(step, _since(started), failure=self._redact(error.message)))
                    raise to_application_error(error, self._redact) from None
                reason = self._redact(answer.reason)
                _report(writer, hook_asked(step, _since(started), verdict=answer.verdict, reason=reason))
                return answer

    async def _answer(self, request: HookRequest) -> HookResult:
        step = request.step
        found = next((r for r in self._registered if r.name == step.name and step.moment in r.moments), None)
        if found is None:
            raise HookFailedError(
                f"this worker has no hook {step.name!r} ({step.moment}), unlike the worker that prepared the run"
            )
        if isinstance(found, Interceptor):
            return await _intercepted(found, request)
        return await _hooked(found, request)


async def _hooked(hook: Hook, request: HookRequest) -> HookResult:
    origin, result = request.origin, request.result
    run = RunInfo(
        run_id=origin.run_id,
        agent=origin.agent,
        task=request.task,
        session_id=origin.session_id,
        metadata=dict(request.metadata),
    )
    told = () if result is None else (result.error if hook.moment is Moment.ERROR else result,)
    answer = await answer_of(hook.name, hook.function, *told, run, patience=request.step.timeout)
    if hook.moment is not Moment.START:
        return HookResult()
    match answer:
        case None:
            return HookResult()
        case Deny(reason=reason):
            return HookResult(verdict="deny", reason=reason)
        case Ask(reason=reason):
            return HookResult(verdict="ask", reason=reason)
        case _:
            raise HookFailedError(f"it returned {answer!r:.200} instead of None, Deny or Ask")


async def _intercepted(interceptor: Interceptor, request: HookRequest) -> HookResult:
    task = _task(request)
    if request.step.moment is Moment.AFTER:
        output = request.result.output if request.result else ""
        answer = await answer_of(
            interceptor.name, _side(interceptor.after), task, output, patience=request.step.timeout
        )
        text = checked_text(answer, output)
        return HookResult(text=text if text != output else None)
    answer = await answer_of(interceptor.name, _side(interceptor.before), task, patience=request.step.timeout)
    match answer:
        case None:
            return HookResult()
        case Deny(reason=reason):
            return HookResult(verdict="deny", reason=reason)
        case Instead(result=result):
            return HookResult(text=str(result), instead=True)
        case Task(parameters={"task": str(text)}) if text.strip():
            return HookResult(text=text if text != request.task else None)
        case _:
            raise HookFailedError(f"it returned {answer!r:.200} instead of None, a Task, Instead or Deny")


def _side(side: Callable[..., Any] | None) -> Callable[..., Any]:
    if side is None:
        raise HookFailedError("it has nothing to do at this moment")
    return side


def _task(request: HookRequest) -> Task:
    parameters = {"task": request.task, "metadata": dict(request.metadata)}
    return task_of(request.origin, Action.EXECUTE, "intercepted", at=datetime.now(UTC), parameters=parameters)


def _report(writer: StreamWriter, event: StreamEvent) -> None:
    writer.emit(event)
    _log.info("hook_asked", status=event.status, **event.parameters)


def _since(started: float) -> float:
    return milliseconds(perf_counter() - started)
