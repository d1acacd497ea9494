"""Where a run stands between two turns, as a value: each turn is a step from one such state to the next.

What the step does with the rest of the run is `run.evolve` and `turns.next_turn`; a run that continues as new begins
with the state it had.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnState:
    """A run's turns so far."""

    run_id: str
    turn: int
    """Turns that have begun; 0 before the first."""
    limit: int
    """Turns that the run may take."""

    @classmethod
    def initial(cls, run_id: str, limit: int) -> "TurnState":
        """Before the first turn."""
        return cls(run_id=run_id, turn=0, limit=limit)

    def next(self) -> "TurnState":
        """With one turn more; a last answer may be one beyond the limit."""
        return replace(self, turn=self.turn + 1)

    @property
    def is_final(self) -> bool:
        """No turn may follow."""
        return self.turn >= self.limit

    @property
    def turn_id(self) -> str | None:
        """The turn that began last; None before the first."""
        return turn_id(self.run_id, self.turn)

    @property
    def parent_turn_id(self) -> str | None:
        """The turn before that."""
        return turn_id(self.run_id, self.turn - 1)


def turn_id(run_id: str, turn: int) -> str | None:
    """Names a turn in all runs, `RUN/tN`; what it does has ids that begin so."""
    return f"{run_id}/t{turn}" if turn > 0 else None
