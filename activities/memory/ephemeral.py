"""State of a tool call while it runs.

    with ephemeral.of(context.run_id, context.call_id) as state:
        state["cursor"] = page.next

The state exists only in this process and has a size limit. Don't store results in it.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, Final

MOST_ENTRIES: Final = 100
"""Maximum number of entries per call."""
MOST_CHARACTERS: Final = 100_000
"""Maximum total number of characters in one call's keys and values, as they appear in the dump."""


class EphemeralFull(ValueError):
    """Raised if a tool call tries to store too much state."""


class EphemeralState(MutableMapping[str, Any]):
    """The state of one call: a dict with a size limit."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._sizes: dict[str, int] = {}

    def __getitem__(self, key: str) -> Any:
        """Return the value of this key."""
        return self._values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        """Store a value. Raises EphemeralFull if the value doesn't fit."""
        sizes = {**self._sizes, key: len(key) + len(repr(value))}
        if len(sizes) > MOST_ENTRIES or sum(sizes.values()) > MOST_CHARACTERS:
            raise EphemeralFull(
                f"a tool call can store at most {MOST_ENTRIES} entries with {MOST_CHARACTERS} characters in total:"
                f" delete some before you store {key!r}, or write to a file"
            )
        self._values[key], self._sizes = value, sizes

    def __delitem__(self, key: str) -> None:
        """Delete the value of this key."""
        del self._values[key], self._sizes[key]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys in insertion order."""
        return iter(self._values)

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._values)


class EphemeralMemory:
    """The states of all running tool calls in this process."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], EphemeralState] = {}

    @contextmanager
    def of(self, run_id: str, call_id: str) -> Iterator[EphemeralState]:
        """Provide one call's state, which starts empty. The state is discarded when the body exits, whether normally or
        with an exception.
        """
        name, state = (run_id, call_id), EphemeralState()
        before = self._calls.get(name)
        self._calls[name] = state
        try:
            yield state
        finally:
            if before is not None:  # an earlier attempt that doesn't know that it has ended
                self._calls[name] = before
            elif self._calls.get(name) is state:
                del self._calls[name]

    def dump_ephemeral_state(self) -> Mapping[str, Mapping[str, str]]:
        """Return every entry of every running call as text, for debugging."""
        return {
            f"{run_id}/{call_id}": {key: repr(value) for key, value in state.items()}
            for (run_id, call_id), state in self._calls.items()
        }
