"""Track a run's spending from its events and its status. If the two counts differ, the larger one is shown."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loom.cli.output import counted, money, tokens
from loom.domain.core.messages import JsonObject


@dataclass(slots=True)
class Spending:
    """One run's turns, tokens, cost and tool calls."""

    max_turns: int | None = None
    tokens_seen: int = 0
    cost_seen: float | None = 0.0
    """None if the price of any call is unknown."""
    tool_calls_seen: int = 0
    _status: JsonObject = field(default_factory=dict)

    def add(self, said: Mapping[str, Any]) -> None:
        """Add a model call's tokens and cost."""
        self.tokens_seen += int(said.get("input_tokens", 0)) + int(said.get("output_tokens", 0))
        cost = said.get("cost")
        self.cost_seen = None if cost is None or self.cost_seen is None else self.cost_seen + float(cost)

    def take(self, status: JsonObject) -> None:
        """Update the counts from the run's status. A stale status has no counts."""
        if not status.get("stale"):
            self._status = status

    def facts(self, turn: int) -> list[str]:
        """Format the number of turns, tokens and tool calls and the cost, each with its limit."""
        usage = self._status.get("usage") or {}
        used = max(self.tokens_seen, int(usage.get("total_tokens") or 0))
        called = max(self.tool_calls_seen, int(self._status.get("tool_calls") or 0))
        turn = max(turn, int(self._status.get("turn") or 0))
        most = self._limit("turns") or self.max_turns
        return [
            f"turn {turn}" + (f"/{most}" if most else ""),
            f"{tokens(used)}{_of(self._limit('tokens'), tokens)} tokens",
            money(self._cost()) + _of(self._limit("cost_usd"), money),
            counted(called, "tool call") + _of(self._limit("tool_calls"), str),
        ]

    def _cost(self) -> float | None:
        reported = self._status.get("cost", 0.0)
        return None if reported is None or self.cost_seen is None else max(self.cost_seen, reported)

    def _limit(self, name: str) -> Any:
        return ((self._status.get("budget") or {}).get(name) or {}).get("limit")


def _of(limit: Any, shown: Any) -> str:
    return "" if limit is None else f"/{shown(limit)}"
