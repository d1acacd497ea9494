"""Call the user's hooks before a tool call. A hook that fails or doesn't respond in time denies the call."""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from loom.activities.toolbox.error_reasons import reason_of
from loom.activities.toolbox.user_tools.call import in_thread, is_asked_to_stop
from loom.activities.toolbox.user_tools.signature import is_asynchronous
from loom.domain.agents.hook_steps import Moment
from loom.domain.agents.hooks import Ask, Deny, Hook, Objection, Registered, strictest
from loom.domain.core.errors import HookFailedError
from loom.domain.core.messages import ToolCall
from loom.domain.core.tool_names import ASK_USER, DONE

_log = structlog.get_logger("loom.hook")

FREE = (DONE, ASK_USER)
"""Calls that bypass hooks and interceptors, because a run may always end itself or ask a question."""


def gates_of(registered: Sequence[Registered]) -> list[Hook]:
    """Return the agent's hooks that are called before its tool calls."""
    return [each for each in registered if isinstance(each, Hook) and each.moment is Moment.TOOL_CALL]


async def objection_to(call: ToolCall, run_id: str, hooks: Sequence[Hook]) -> Objection | None:
    """Call the hooks for this tool concurrently, and return the strictest verdict."""
    if call.name in FREE:
        return None
    due = [hook for hook in hooks if hook.tools is None or call.name in hook.tools]
    answers = await asyncio.gather(*(_ask(hook, call, run_id) for hook in due))
    return strictest(answer for answer in answers if answer is not None)


async def answer_of(name: str, function: Callable[..., Any], *given: Any, patience: float | None) -> Any:
    """Return the result of a user's function. Raises HookFailedError with the reason if the function fails or doesn't
    respond in time.

    `patience` is the timeout in seconds, or None for no timeout.
    """
    try:
        async with asyncio.timeout(patience):
            return await _answer(function, given)
    except TimeoutError:
        raise HookFailedError(f"it gave no answer within {patience:g} s") from None
    except asyncio.CancelledError:
        if is_asked_to_stop():
            raise
        raise HookFailedError("something that it waited for was cancelled") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a hook that fails denies the call
        _log.warning("user_code_failed", name=name, exc_info=True)
        raise HookFailedError(f"it failed with {reason_of(error)}") from None


def text_in(answer: object) -> str:
    """Return the text that a user's function has returned. Raises HookFailedError if it is something else."""
    if not isinstance(answer, str):
        raise HookFailedError(f"it returned {answer!r:.80} instead of a text")
    return answer


async def _ask(hook: Hook, call: ToolCall, run_id: str) -> Objection | None:
    try:
        answer = await answer_of(hook.name, hook.function, call, run_id, patience=hook.timeout)
    except HookFailedError as error:
        return _broken(hook.name, error.message)
    match answer:
        case None:
            return None
        case Deny() | Ask():
            return Objection(hook=hook.name, answer=answer)
        case _:
            return _broken(hook.name, f"it returned {answer!r} instead of None, Deny or Ask")


async def _answer(function: Callable[..., Any], given: Sequence[Any]) -> Any:
    came: Any = function(*given) if is_asynchronous(function) else await in_thread(lambda: function(*given))
    return await came if inspect.isawaitable(came) else came


def _broken(name: str, why: str) -> Objection:
    return Objection(hook=name, answer=Deny(f"the hook {name} blocks this call: {why}"))
