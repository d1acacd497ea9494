"""Measure what assembling and compressing a context saves and costs: `python -m bench.context`.

The session is built from this repository. An agent reads files, searches them, fetches documents as pages and writes
reports. Each turn is one model call. The figures are the sums of the tokens in all calls of a session.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from time import perf_counter

from bench.report import table
from loom.domain.agents.spec import AgentSpec
from loom.domain.context.compression import Compressing, KnownFacts, compress
from loom.domain.context.model_context import Measures, build_context
from loom.domain.context.summary_sections import SECTIONS, question
from loom.domain.core.messages import Message, ToolCall, user
from loom.domain.core.tokens import text_tokens, tokens_of
from loom.domain.core.tool_calls import ToolSpec

ROOT = Path(__file__).parent.parent
CLIP = 10_000
TOOLS = tuple(
    ToolSpec(name=name, description=f"{name} of files and pages. " * 4, parameters={"type": "object"}, ephemeral=last)
    for name, last in (("read_file", 0), ("grep", 0), ("http_fetch", 3), ("write_file", 0))
)
SPEC = AgentSpec(name="bench", model="demo", system_prompt="You audit a repository.", tools=TOOLS)
SECTION = dict.fromkeys(SECTIONS, "what has to be known to go on, in words. " * 40)


def context() -> str:
    """Return the section as Markdown."""
    return "\n\n".join(
        (
            "## Context",
            "Input tokens of all model calls in a session, compared with sending every message in full"
            " (window: 200,000 tokens):",
            _savings(),
            "Time for compressing a conversation, without the time of the model call:",
            _compressions(),
        )
    )


def _savings() -> str:
    rows = []
    for turns in (40, 80, 120, 160):
        messages = _session(turns)
        plain, seen, kept = _totals(messages)
        rows.append([turns, f"{plain:,}", f"{seen:,}", f"{100 - 100 * seen / plain:.0f} %", f"{kept} of {turns}"])
    return table(["turns", "in full", "assembled", "saved", "calls with an unchanged prefix"], rows)


def _totals(messages: Sequence[Message]) -> tuple[int, int, int]:
    """Return the tokens of all calls in full and as assembled, and the number of calls with an unchanged prefix."""
    around = tokens_of(TOOLS) + build_context(SPEC, (), tools=(), measures=Measures()).estimated
    measures, before = Measures(), ""
    plain = seen = kept = 0
    for place, message in enumerate(messages):
        if message.role != "assistant":
            continue
        plain += around + tokens_of(messages[:place])
        sight = build_context(SPEC, messages[:place], tools=TOOLS, measures=measures)
        measures = replace(measures, collapsed=sight.collapsed)
        assembled = sight.assembled()
        seen += assembled.tokens
        now = repr(assembled.messages)[:-2]
        kept += now.startswith(before)
        before = now
    return plain, seen, kept


def _compressions() -> str:
    rows = []
    for turns in (100, 333, 1000):
        messages = _session(turns)
        before = tokens_of(messages)
        spent, after = [], 0
        for _ in range(5):
            begun = perf_counter()
            work = Compressing(
                messages=messages,
                tools=TOOLS,
                facts=KnownFacts(),
                room=int(0.75 * min(before, 184_000)),
                section_tokens=512,
                at="2026-01-02T03:04:05",
                turn=turns,
            )
            question(messages, earlier="", room=120_000, section_tokens=512)
            after = compress(work, SECTION).tokens
            spent.append(perf_counter() - begun)
        rows.append([len(messages), f"{before:,}", f"{after:,}", f"{median(spent) * 1000:.0f} ms"])
    return table(["messages", "tokens before", "tokens after", "Loom's own time"], rows)


def _session(turns: int) -> tuple[Message, ...]:
    messages = [user("Audit this repository and write a report on each module.")]
    for number, (tool, path) in enumerate(islice(cycle(_steps()), turns)):
        text = path.read_text()[:CLIP]
        report = f"# {path.name}\n\n{text[:1500]}"
        given = {"path": str(path.relative_to(ROOT)), **({"content": report} if tool == "write_file" else {})}
        made = ToolCall(id=f"c{number}", name=tool, arguments=given)
        results = {"grep": "\n".join(line for line in text.splitlines() if "def " in line), "write_file": "written"}
        messages += (
            Message(role="assistant", content=f"I look at {path.name}.", tool_calls=(made,)),
            Message(role="tool", name=tool, tool_call_id=made.id, content=results.get(tool, text)),
        )
        if number % 20 == 19:
            messages.append(user(f"Mind the errors in {path.name}, too."))
    return tuple(messages)


def _steps() -> Iterator[tuple[str, Path]]:
    """Yield the steps for each module: read it, search it, fetch a page, and write a report."""
    pages = cycle(sorted(ROOT.glob("docs/*.md")))
    for path in sorted(ROOT.glob("loom_domain/*.py")):
        if text_tokens(path.read_text()) > 100:
            yield from (("read_file", path), ("grep", path), ("http_fetch", next(pages)), ("write_file", path))


if __name__ == "__main__":
    sys.stdout.write(context() + "\n")
