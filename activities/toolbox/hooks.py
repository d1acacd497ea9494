"""Asking a user's hooks before a tool call. Whoever fails, or does not answer in time, objects."""

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any, Final

import structlog

from activities.toolbox.user_call import in_thread
from activities.toolbox.user_function import is_asynchronous
from loom_domain.hooks import Ask, Deny, Objection, ToolCallHook, strictest
from loom_domain.messages import ToolCall
from loom_domain.tool_calls import ASK_USER, DONE

_log = structlog.get_logger("loom.tool")

PATIENCE: Final = 10.0
"""Seconds that a hook has to answer."""


async def objection_to(
    call: ToolCall, run_id: str, hooks: Sequence[ToolCallHook], *, patience: float = PATIENCE
) -> Objection | None:
    """The strictest objection of all hooks, which are asked at the same time; a run may always end itself, or ask."""
    if call.name in (DONE, ASK_USER):
        return None
    answers = await asyncio.gather(*(_ask(hook, call, run_id, patience) for hook in hooks))
    return strictest(answer for answer in answers if answer is not None)


async def _ask(hook: ToolCallHook, call: ToolCall, run_id: str, patience: float) -> Objection | None:
    name = getattr(hook, "__name__", type(hook).__name__)
    try:
        async with asyncio.timeout(patience):
            answer = await _answer(hook, call, run_id)
    except TimeoutError:
        return _broken(name, f"it gave no answer within {patience:g} s")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a gate that breaks is shut
        _log.warning("hook_failed", hook=name, tool=call.name, exc_info=True)
        return _broken(name, f"it failed with {type(error).__name__}: {error}")
    match answer:
        case None:
            return None
        case Deny() | Ask():
            return Objection(hook=name, answer=answer)
        case _:
            return _broken(name, f"it answered {answer!r}, which is not None, Deny or Ask")


async def _answer(hook: ToolCallHook, call: ToolCall, run_id: str) -> Any:
    given: Any = hook(call, run_id) if is_asynchronous(hook) else await in_thread(lambda: hook(call, run_id))
    return await given if inspect.isawaitable(given) else given


def _broken(name: str, why: str) -> Objection:
    return Objection(hook=name, answer=Deny(f"the hook {name} blocks this call: {why}"))
