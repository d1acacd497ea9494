"""Hundreds of turns in a window of 32k: every call fits, and nothing that a person said is ever lost."""

import asyncio
import re
from pathlib import Path
from typing import Final

import pytest

from loom.domain.context.summary_sections import SECTIONS
from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.testing.model_replies import Reply, SeenRequest
from loom.testing.model_server import ToolUse, calls, context_length, text
from loom.testing.stream import assert_whole, told
from tests.acceptance.conftest import Working
from tests.integration.workflows.test_compression import is_about_compressing

WINDOW: Final = 32_000
EVERY: Final = 12
SUMMARY: Final = "\n".join(f"<{name}>{'what matters, in words. ' * 20}</{name}>" for name in SECTIONS)


def counted(request: SeenRequest) -> int:
    """Tokens as a tokenizer of its own would count them: pieces of words, and every sign."""
    return len(re.findall(r"\w{1,5}|[^\w\s]", str(request.messages) + str(request.body.get("tools", ""))))


class LongTalk:
    """A model that reads one file after the other, counts tokens, and refuses what does not fit its window."""

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.made = 0
        self.sizes: list[int] = []
        self.due: asyncio.Queue[int] = asyncio.Queue()
        self.last = ""

    def __call__(self, request: SeenRequest) -> Reply:
        tokens = counted(request)
        self.sizes.append(tokens)
        if tokens > WINDOW:
            return context_length(tokens, WINDOW)
        if is_about_compressing(request):
            return Reply(text=SUMMARY, usage=(tokens, 500, 0))
        self.last = str(request.messages)
        step = max(map(int, re.findall(r"call_(\d+)", self.last)), default=0) + 1  # a call can be attempted again
        if step > self.turns:
            return text("finished")
        if step % EVERY == 0 and step > self.made:
            self.due.put_nowait(step)
        self.made = step
        use = ToolUse("read_file", {"path": f"{step % 7}.txt"}, f"call_{step}")
        return Reply(text=f"I read on, step {step}.", calls=calls(use).calls, usage=(tokens, 30, 0))


@pytest.mark.slow
@pytest.mark.parametrize("turns", [150, 300])
async def test_many_turns_fit_a_small_window_and_lose_nothing_that_was_said(
    working: Working, workspace: Path, turns: int
) -> None:
    for number in range(7):
        lines = (f"{number} line {n}: some words of a source file, value={n * 37}\n" for n in range(60))
        (workspace / f"{number}.txt").write_text("".join(lines))
    model = LongTalk(turns)
    loom, _ = await working(model, context_window=WINDOW)

    run_id = await loom.start("Read everything; the master fact is indigo-0.", max_turns=turns + 10)
    for number in range(1, turns // EVERY):
        await model.due.get()
        await loom.client.send(run_id, f"Remember fact {number}: indigo-{number}.", by="ann")
    result = await loom.client.result(run_id)

    assert (result.status, result.output, result.turns) == (RunStatus.COMPLETED, "finished", turns + 1)
    assert max(model.sizes) <= WINDOW
    assert [number for number in range(turns // EVERY) if f"indigo-{number}." not in model.last] == []
    events = await told(loom.client, run_id)
    assert_whole(events)
    done = [event.task.parameters for event in events if event.task.action is Action.COMPRESSION]
    assert done
    assert all(said["success"] and said["trigger"] == "window" for said in done)
    assert all(said["post_tokens"] <= 0.75 * said["pre_tokens"] for said in done)
    print(
        f"compressions {[(d['pre_tokens'], d['post_tokens'], d['duration_ms']) for d in done]}, most {max(model.sizes)}"
    )
