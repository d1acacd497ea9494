"""The tree of errors is what its docstring draws, and every one of it is found by name."""

import importlib
import inspect
import re

import pytest

import loom
from loom.domain.core import errors
from loom.domain.core.errors import BY_NAME, LLMRateLimitError, LoomError, RecoverableError


def drawn() -> dict[str, str]:
    """Each name in the docstring's tree with its parent."""
    parents: dict[str, str] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^ {4}([│├└─ ]*)([A-Z]\w+)", line)
        if found:
            depth = len(found[1]) // 4
            above = [*above[:depth], found[2]]
            parents[found[2]] = above[-2] if depth else ""
    return parents


def defined() -> dict[str, str]:
    """Each error of the module with its parent."""
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, LoomError)]
    return {c.__name__: "" if c is LoomError else c.__bases__[0].__name__ for c in classes}


def test_the_docstring_draws_every_error_in_its_place() -> None:
    assert drawn() == defined()


def test_every_error_is_imported_from_loom_errors() -> None:
    assert {name: getattr(loom.errors, name) for name in defined()} == {
        name: getattr(errors, name) for name in defined()
    }
    assert importlib.import_module("loom.errors") is loom.errors


def test_every_error_is_found_by_its_name() -> None:
    assert {name: kind.__name__ for name, kind in BY_NAME.items()} == {name: name for name in defined()}


@pytest.mark.parametrize("kind", BY_NAME.values())
def test_every_error_says_what_it_means_and_carries_its_facts(kind: type[LoomError]) -> None:
    error = kind("no such thing", field="agent")
    assert kind.__doc__
    assert (str(error), error.message, error.context) == ("no such thing", "no such thing", {"field": "agent"})
    assert error.recoverable is issubclass(kind, RecoverableError)


def test_a_rate_limit_knows_how_long_to_wait() -> None:
    assert LLMRateLimitError("slow down", retry_after=2.5).retry_after == 2.5
    assert LLMRateLimitError("slow down").retry_after is None
