"""What `diff-runs` says of two runs, for programs and for people."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final, TypeAlias

from loom.cli.output import counted, money, one_line, tokens
from loom.domain.history.diffs import Side, TurnPair, TurnSeen, first_difference, paired, tools_used

Told: TypeAlias = tuple[Side, dict[str, Any]]
"""A run's turns, and what is known of it as a whole."""

WIDTH: Final = 48
"""Characters of one run's column."""


def difference(one: Told, other: Told) -> dict[str, Any]:
    """The whole comparison as one JSON value."""
    pairs = paired(one[0], other[0])
    first = first_difference(pairs)
    return {
        "a": _summary(*one),
        "b": _summary(*other),
        "first_difference": None if first is None else _pair(first),
        "turns": [_pair(pair) for pair in pairs],
    }


def lines(one: Told, other: Told) -> Iterator[str]:
    """Where they part, then both side by side."""
    pairs = paired(one[0], other[0])
    first = first_difference(pairs)
    same = pairs.index(first) if first is not None else len(pairs)
    turns = counted(len(pairs), "turn")
    yield (
        f"{same} of {turns} {'is' if same == 1 else 'are'} the same" if first is not None else f"{turns}, all the same"
    )
    if first is not None:
        yield f"the first that is not differs in its {', '.join(first.differs)}:"
        for name, seen in (("a", first.a), ("b", first.b)):
            yield from _turn_lines(name, seen)
    yield ""
    a, b = _summary(*one), _summary(*other)
    for name in (
        "run_id",
        "forked_from",
        "status",
        "model",
        "turns",
        "tool_calls",
        "tokens",
        "cost",
        "tools",
        "output",
    ):
        yield f"{name.replace('_', ' '):<12} {_cell(name, a[name]):<{WIDTH}}  {_cell(name, b[name])}".rstrip()


def _summary(side: Side, status: dict[str, Any]) -> dict[str, Any]:
    return {
        "run_id": side.run_id,
        "forked_from": status.get("forked_from"),
        "status": status["status"],
        "model": status["model"],
        "turns": status["turn"],
        "tool_calls": status.get("tool_calls"),
        "tokens": status["usage"].get("total_tokens"),
        "cost": status["cost"],
        "tools": dict(tools_used(side.turns)),
        "output": status["output"],
    }


def _pair(pair: TurnPair) -> dict[str, Any]:
    return {
        "a": asdict(pair.a) if pair.a else None,
        "b": asdict(pair.b) if pair.b else None,
        "differs": list(pair.differs),
    }


def _turn_lines(name: str, seen: TurnSeen | None) -> Iterator[str]:
    if seen is None:
        yield f"  {name}: no such turn"
        return
    yield f"  {name}: turn {seen.number}, {seen.model}: {one_line(seen.text) or '(no text)'}"
    for call, result in zip(seen.calls, seen.results, strict=True):
        yield f"       → {one_line(call)}"
        yield f"         {one_line(result) or '(no result)'}"


def _cell(name: str, value: Any) -> str:
    if name == "cost":
        return money(value)
    if name == "tokens":
        return "" if value is None else tokens(value)
    if name == "tools":
        return one_line(", ".join(f"{tool} {count}" for tool, count in value.items()) or "none", WIDTH)
    if name == "forked_from":
        return f"{one_line(value['run_id'], WIDTH - 10)} turn {value['turn']}" if value else "-"
    return one_line("" if value is None else str(value), WIDTH)
