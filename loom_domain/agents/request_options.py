"""The options in a request's `metadata.loom`. They override the agent's settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from loom.domain.agents.branches_pattern import checked_branches
from loom.domain.agents.reflection import MOST_ROUNDS, Pattern
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject
from loom.domain.core.suggestions import nearest

KEY: Final = "loom"
FIELD: Final = f"metadata.{KEY}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """The options that a request sets. If an option is None, the agent's setting applies."""

    evaluate: bool | None = None
    pattern: Pattern | None = None
    rounds: int | None = None
    branches: int | None = None


def read_options(metadata: JsonObject) -> RunOptions:
    """Return a request's options. Raises BadRequest if an option is invalid. The message names the option."""
    given = metadata.get(KEY)
    if given is None:
        return RunOptions()
    if not isinstance(given, Mapping):
        raise BadRequest(f"{FIELD} must be an object with any of the options {', '.join(_KNOWN)}", field=FIELD)
    for name in given:
        if name not in _KNOWN:
            hint = nearest(str(name), _KNOWN, f"known: {', '.join(_KNOWN)}")
            raise BadRequest(f"{FIELD} has an unknown option {name!r}; {hint}", field=FIELD)
    evaluate = given.get("evaluate")
    if evaluate is not None and not isinstance(evaluate, bool):
        raise BadRequest(f"{FIELD}.evaluate must be true or false, not {evaluate!r}", field=FIELD)
    pattern = checked_pattern(given.get("pattern"), FIELD)
    return RunOptions(
        evaluate=evaluate,
        pattern=pattern,
        rounds=checked_rounds(given.get("rounds"), FIELD),
        branches=checked_branches(given.get("branches"), FIELD),
    )


def checked_pattern(pattern: Any, where: str) -> Pattern | None:
    """Return the pattern with that name. Raises BadRequest if there is no such pattern."""
    if pattern is not None and pattern not in get_args(Pattern):
        raise BadRequest(
            f"{where}: the pattern must be one of {', '.join(get_args(Pattern))}, not {pattern!r}", field=where
        )
    known: Pattern | None = pattern
    return known


def checked_rounds(rounds: Any, where: str) -> int | None:
    """Return the number of rounds. Raises BadRequest if the number is out of range."""
    if rounds is None:
        return None
    if isinstance(rounds, bool) or not isinstance(rounds, int) or not 1 <= rounds <= MOST_ROUNDS:
        raise BadRequest(f"{where}: rounds must be a number from 1 to {MOST_ROUNDS}, not {rounds!r}", field=where)
    return rounds


_KNOWN: Final = tuple(RunOptions.__dataclass_fields__)
