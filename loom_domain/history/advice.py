"""Advice about a run from its figures: what was slow, what failed, what cost more than it had to.

`figures_of` counts the tasks of a run's stream, its sub-agents included. `advice_for` is a pure function of the
figures, so a report can show both. Figures of several runs can be added.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from loom.domain.core.tasks import Action, Task

MANY_TOKENS: Final = 150_000
"""A run that uses more tokens than this gets advice."""
LEAST_SUCCESS: Final = 0.8
"""The share of tool calls that should succeed."""
POOR_RATIO: Final = 0.8
"""A compression that leaves more than this share of the tokens is poor."""
GOOD_RATIO: Final = 0.5
"""A compression that leaves less than this share of the tokens is good."""
MOST_ERRORS: Final = 0.1
"""The share of tool calls and model calls that may fail."""
SLOW_TOOL: Final = 10.0
"""Mean seconds of a call after which a tool counts as slow."""
QUICK_TOOLS: Final = 1.0
"""If all tool calls together take less time, in seconds, it makes no difference whether they overlap."""
LEAST_CACHED: Final = 0.3
"""The share of prompt tokens that a provider's cache should serve in a run of several calls."""
LONG_PROMPTS: Final = 2_000
"""Mean prompt tokens of a model call from which providers cache prompts."""
FEW: Final = 3
"""With fewer calls, there is no advice about a tool or a cache."""

Topic: TypeAlias = Literal[
    "tokens", "tool_success", "compression", "errors", "concurrency", "slow_tool", "failing_tool", "cache"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolFigures:
    """The calls of one tool."""

    calls: int = 0
    failed: int = 0
    seconds: float = 0.0
    """The time that all calls took together."""

    def __add__(self, other: "ToolFigures") -> "ToolFigures":
        """Add two figures field by field."""
        return ToolFigures(
            calls=self.calls + other.calls, failed=self.failed + other.failed, seconds=self.seconds + other.seconds
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFigures:
    """What a run did, or what several runs did together."""

    runs: int = 1
    model_calls: int = 0
    """Attempts at model calls, failed ones included."""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    tools: Mapping[str, ToolFigures] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    """The failed tool calls and model calls, by the type of their error."""
    compressions: tuple[float, ...] = ()
    """For each compression, the tokens after it as a share of those before."""
    turns_with_several_calls: int = 0
    parallel_turns: int = 0
    """The turns in which a tool call began before another one had ended."""

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens."""
        return self.input_tokens + self.output_tokens

    @property
    def tool_calls(self) -> int:
        """The calls of all tools."""
        return sum(tool.calls for tool in self.tools.values())

    @property
    def tool_success(self) -> float:
        """The share of tool calls that succeeded. 1 if there were none."""
        return 1 - sum(tool.failed for tool in self.tools.values()) / self.tool_calls if self.tool_calls else 1.0

    @property
    def error_rate(self) -> float:
        """Failed calls as a share of all tool calls and model calls."""
        calls = self.tool_calls + self.model_calls
        return sum(self.errors.values()) / calls if calls else 0.0

    def __add__(self, other: "RunFigures") -> "RunFigures":
        """Return the figures of both together."""
        names = dict.fromkeys((*self.tools, *other.tools))
        none = ToolFigures()
        return RunFigures(
            runs=self.runs + other.runs,
            model_calls=self.model_calls + other.model_calls,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            tools={name: self.tools.get(name, none) + other.tools.get(name, none) for name in names},
            errors=dict(Counter(self.errors) + Counter(other.errors)),
            compressions=(*self.compressions, *other.compressions),
            turns_with_several_calls=self.turns_with_several_calls + other.turns_with_several_calls,
            parallel_turns=self.parallel_turns + other.parallel_turns,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """One piece of advice."""

    topic: Topic
    text: str
    """What was seen, and what to do."""
    is_praise: bool = False
    """Whether the advice confirms that something works well."""
    tool: str = ""
    """The tool that it is about, if any."""


def figures_of(tasks: Iterable[Task]) -> RunFigures:
    """Return the figures of the run whose stream contains these tasks, in order."""
    told = tuple(tasks)
    figures, tools, errors = RunFigures(), dict[str, ToolFigures](), Counter[str]()
    for task in told:
        said = task.parameters
        match task.action:
            case Action.MODEL_CALL:
                figures = _with_model_call(figures, task)
                if task.status == "failed":
                    errors[str(said.get("error", "unknown"))] += 1
            case Action.TOOL_RESULT:
                name, result = str(said.get("tool", "")), (task.result or {}).get("metadata") or {}
                failed = task.status == "error"
                took = float(result.get("execution_time") or 0.0)
                tools[name] = tools.get(name, ToolFigures()) + ToolFigures(calls=1, failed=failed, seconds=took)
                if failed:
                    errors[f"{name}: {result.get('error_type') or 'unknown'}"] += 1
            case Action.COMPRESSION if said.get("success") and said.get("pre_tokens"):
                ratio = float(said.get("post_tokens") or 0) / float(said["pre_tokens"])
                figures = replace(figures, compressions=(*figures.compressions, ratio))
            case _:
                pass
    several, parallel = _concurrency(told)
    return replace(figures, tools=tools, errors=dict(errors), turns_with_several_calls=several, parallel_turns=parallel)


def _concurrency(tasks: Iterable[Task]) -> tuple[int, int]:
    """Return the number of turns with several tool calls, and of those in which calls overlapped."""
    begun: dict[tuple[str, int], set[str]] = {}
    running: dict[tuple[str, int], set[str]] = {}
    overlapping: set[tuple[str, int]] = set()
    for task in tasks:
        turn, call_id = (task.run_id, int(task.parameters.get("turn") or 0)), str(task.parameters.get("call_id"))
        if task.action is Action.TOOL_CALL:
            if running.setdefault(turn, set()) - {call_id}:
                overlapping.add(turn)
            running[turn].add(call_id)
            begun.setdefault(turn, set()).add(call_id)
        elif task.action is Action.TOOL_RESULT:
            running.get(turn, set()).discard(call_id)
    return sum(len(calls) > 1 for calls in begun.values()), len(overlapping)


def _with_model_call(figures: RunFigures, task: Task) -> RunFigures:
    said = task.parameters
    return replace(
        figures,
        model_calls=figures.model_calls + 1,
        input_tokens=figures.input_tokens + int(said.get("input_tokens") or 0),
        output_tokens=figures.output_tokens + int(said.get("output_tokens") or 0),
        cached_tokens=figures.cached_tokens + int(said.get("cached_tokens") or 0),
    )


def advice_for(figures: RunFigures) -> tuple[Advice, ...]:
    """Return suggestions, most important first, and then what works well. Empty if there are none."""
    return (*_problems(figures), *_praise(figures))


def _problems(figures: RunFigures) -> Iterator[Advice]:
    if figures.error_rate > MOST_ERRORS:
        cause, count = max(figures.errors.items(), key=lambda each: each[1])
        yield Advice(
            topic="errors",
            text=f"{figures.error_rate:.0%} of all calls failed, most often with {cause} ({count} times):"
            " fix this cause first.",
        )
    if figures.tool_success < LEAST_SUCCESS:
        yield Advice(
            topic="tool_success",
            text=f"{figures.tool_success:.0%} of {figures.tool_calls} tool calls succeeded: describe the tools and"
            " their arguments more clearly, or remove tools that the agent can't use.",
        )
    yield from _tools(figures)
    mean = figures.tokens / max(1, figures.runs)
    if mean > MANY_TOKENS:
        yield Advice(
            topic="tokens",
            text=f"{mean:,.0f} tokens per run: compress earlier (`compress_at`), give the agent fewer tools, or"
            " delegate parts of the task to sub-agents.",
        )
    if figures.compressions and (ratio := _mean(figures.compressions)) > POOR_RATIO:
        yield Advice(
            topic="compression",
            text=f"a compression leaves {ratio:.0%} of the tokens: keep fewer turns as they are (`keep_turns`), or"
            " lower `compress_target`.",
        )
    in_tools = sum(tool.seconds for tool in figures.tools.values())
    if figures.turns_with_several_calls and not figures.parallel_turns and in_tools >= QUICK_TOOLS:
        yield Advice(
            topic="concurrency",
            text="calls of the same turn ran one after the other (number of such turns:"
            f" {figures.turns_with_several_calls}): declare tools that only read as parallel.",
        )
    if _misses_cache(figures):
        share = figures.cached_tokens / figures.input_tokens
        yield Advice(
            topic="cache",
            text=f"the provider's cache served {share:.0%} of the prompt tokens: keep the beginning of the prompt the"
            " same from call to call, and use a model that caches prompts.",
        )


def _tools(figures: RunFigures) -> Iterator[Advice]:
    for name, tool in sorted(figures.tools.items(), key=lambda each: -each[1].failed):
        if tool.calls >= FEW and 1 - tool.failed / tool.calls < LEAST_SUCCESS:
            text = (
                f"{tool.failed} of {tool.calls} calls of {name} failed: correct it, or describe its use more clearly."
            )
            yield Advice(topic="failing_tool", tool=name, text=text)
    for name, tool in sorted(figures.tools.items(), key=lambda each: -each[1].seconds):
        if (mean := tool.seconds / max(1, tool.calls)) >= SLOW_TOOL:
            text = (
                f"a call of {name} takes {mean:.0f} s on average ({tool.calls} calls): do less in one call, or cache."
            )
            yield Advice(topic="slow_tool", tool=name, text=text)


def _praise(figures: RunFigures) -> Iterator[Advice]:
    if figures.compressions and (ratio := _mean(figures.compressions)) < GOOD_RATIO:
        yield Advice(topic="compression", is_praise=True, text=f"a compression leaves only {ratio:.0%} of the tokens.")


def _misses_cache(figures: RunFigures) -> bool:
    calls = figures.model_calls
    is_long = figures.input_tokens > LONG_PROMPTS * calls
    return calls >= FEW * figures.runs and is_long and figures.cached_tokens < LEAST_CACHED * figures.input_tokens


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)
