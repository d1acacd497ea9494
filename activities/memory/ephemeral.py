"""What a tool call keeps while it runs, and not a moment longer.

    with ephemeral.of(context.run_id, context.call_id) as state:
        state["cursor"] = page.next

In this process only, and bounded: it is no place for results.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, Final

MOST_ENTRIES: Final = 100
"""Of one call."""
MOST_CHARACTERS: Final = 100_000
"""Of one call's keys and values, as they are spelled in the dump."""


class EphemeralFull(ValueError):
    """A tool call keeps too much."""


class EphemeralState(MutableMapping[str, Any]):
    """One call's state: a dict that says when it is full."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._sizes: dict[str, int] = {}

    def __getitem__(self, key: str) -> Any:
        """What was kept under this key."""
        return self._values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        """Keep a value; EphemeralFull when there is no room for it."""
        sizes = {**self._sizes, key: len(key) + len(repr(value))}
        if len(sizes) > MOST_ENTRIES or sum(sizes.values()) > MOST_CHARACTERS:
            raise EphemeralFull(
                f"a tool call keeps at most {MOST_ENTRIES} entries of {MOST_CHARACTERS} characters together:"
                f" drop some before {key!r}, or write to a file"
            )
        self._values[key], self._sizes = value, sizes

    def __delitem__(self, key: str) -> None:
        """Drop what was kept under this key."""
        del self._values[key], self._sizes[key]

    def __iter__(self) -> Iterator[str]:
        """The keys, in the order in which they were first kept."""
        return iter(self._values)

    def __len__(self) -> int:
        """How many entries there are."""
        return len(self._values)


class EphemeralMemory:
    """The states of the tool calls that run in this process now."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], EphemeralState] = {}

    @contextmanager
    def of(self, run_id: str, call_id: str) -> Iterator[EphemeralState]:
        """The state of one call, empty at first; gone when the body ends, however it ends."""
        name, state = (run_id, call_id), EphemeralState()
        before = self._calls.get(name)
        self._calls[name] = state
        try:
            yield state
        finally:
            if before is not None:  # an earlier attempt that has not noticed its end
                self._calls[name] = before
            elif self._calls.get(name) is state:
                del self._calls[name]

    def dump_ephemeral_state(self) -> Mapping[str, Mapping[str, str]]:
        """Every entry of every call that runs, as text: for debugging."""
        return {
            f"{run_id}/{call_id}": {key: repr(value) for key, value in state.items()}
            for (run_id, call_id), state in self._calls.items()
        }
