"""Measure how the history grows in one long conversation, and draw it.

The conversation is the one of https://github.com/temporalio/sdk-python/issues/1890: an agent calls a tool a hundred
times. The results have 5 KB each, and at the end, the model's context has 200,000 tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Final

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError, WorkflowHistory

from bench.peers.picture import DARK, LIGHT, Curve, picture
from bench.report import section, table
from bench.shape import OTHER, Shape
from bench.stage import Stage
from bench.targets import Section, Target
from bench.turns import Loop, run_id, told

FILE: Final = "page.txt"
RESULT: Final = 5_000
SHAPE: Final = Shape(120, tool=OTHER, file=FILE, said=3_000)
"""Has a fifth more turns than the issue, to show where the server ends a run."""
CALLS: Final = 100
"""The calls of the issue. By then, the conversation has 200,000 tokens."""
MEGABYTE: Final = 1_000_000
IMAGES: Final = ("history-growth-light.svg", "history-growth-dark.svg")


@dataclass(frozen=True)
class _Grown:
    """How one loop's history has grown."""

    sizes: list[int]
    """Bytes of the history before each model call."""
    seconds: float
    is_done: bool

    @property
    def calls(self) -> int:
        """Return the number of tool calls whose results the model has received."""
        return len(self.sizes) - 1


async def conversation(stage: Stage, compared: Mapping[str, Loop]) -> Section:
    """Run the conversation in each loop, and return how its history has grown."""
    (Path(stage.env["LOOM_WORKSPACE"]) / FILE).write_text("".join(f"{n:03d} {'of the page ' * 8}\n" for n in range(50)))
    client = await Client.connect(stage.env["TEMPORAL_ADDRESS"])
    grown = {loop: await _grown(client, loop, run) for loop, run in compared.items()}
    loom = grown["loom"]
    rows = [
        [
            *(
                told(loop),
                mine.calls,
                *(_megabytes(mine, calls) for calls in (10, 50, CALLS)),
                _megabytes(mine, mine.calls),
            ),
            f"{mine.seconds:.0f} s",
            "completed" if mine.is_done else "ended by the server",
        ]
        for loop, mine in grown.items()
    ]
    head = ["loop", "calls", "history after 10 calls", "50 calls", f"{CALLS} calls", "at the end", "time", "outcome"]
    peers = [mine.sizes for loop, mine in grown.items() if loop != "loom"]
    least = min(sizes[min(CALLS, len(sizes) - 1)] for sizes in peers)
    targets = (
        Target(what="tool calls of Loom in the long conversation", measured=loom.calls, at_least=SHAPE.turns),
        Target(
            what=f"Loom's history after {CALLS} calls ÷ the smallest of its peers",
            measured=loom.sizes[CALLS] / least,
            at_most=0.1,
        ),
    )
    light, dark = IMAGES
    text = (
        "The conversation of [issue 1890 of Temporal's Python SDK](https://github.com/temporalio/sdk-python/issues/1890):"
        f" each turn calls a tool, which returns {RESULT // 1000} KB. The model writes {SHAPE.said // 1000} KB beside"
        f" each call, so that the conversation has about 200,000 tokens after {CALLS} calls. A run ends after"
        f" {SHAPE.turns} calls, unless the server ends it earlier, because a history may have at most 50 MB. Loom's"
        " history contains each message once. Each loop ran once."
    )
    shown = (
        f'<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="images/{dark}">\n'
        f'  <img alt="Size of the history after each tool call" src="images/{light}">\n</picture>\n\n'
        + table(head, rows)
    )
    curves = [
        Curve(told(loop), [size / MEGABYTE for size in mine.sizes], is_done=mine.is_done)
        for loop, mine in grown.items()
    ]
    images = {light: picture(curves, LIGHT), dark: picture(curves, DARK)}
    return Section(section("A long conversation", text, shown), targets, images)


async def _grown(client: Client, loop: str, run: Loop) -> _Grown:
    begun = perf_counter()
    try:
        await run(str(SHAPE))
        is_done = True
    except WorkflowFailureError:
        is_done = False
    seconds = perf_counter() - begun
    history = await client.get_workflow_handle(run_id(loop, str(SHAPE))).fetch_history()
    return _Grown(_sizes(history), seconds, is_done)


def _sizes(history: WorkflowHistory) -> list[int]:
    """Return the bytes of the history before each model call. Each loop's activity for it has *model* in its name."""
    sizes, size = [], 0
    for event in history.events:
        is_scheduled = event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
        if is_scheduled and "model" in event.activity_task_scheduled_event_attributes.activity_type.name:
            sizes.append(size)
        size += event.ByteSize()
    return sizes


def _megabytes(grown: _Grown, calls: int) -> str:
    return f"{grown.sizes[calls] / MEGABYTE:.2f} MB" if calls < len(grown.sizes) else ""
