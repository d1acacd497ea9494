"""A name for a user's code: another one when the code is, the same wherever it lies."""

import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from loom.activities.toolbox.code_digest import code_digest

CODE = """
import functools

def greet(name):
    return f"hello, {name}"

def logged(function):
    @functools.wraps(function)
    def inner(*given):
        return function(*given)
    return inner

@logged
def decorated(name):
    return "hello"

class Greeter:
    def __call__(self, name):
        return "hello"

    def before(self, task):
        return None
"""


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """`loaded(code)`: a module of this code, in a file of its own, known to Python as a worker's app is."""
    made: list[ModuleType] = []

    def load(code: str) -> ModuleType:
        path = tmp_path / f"source_of_a_test_{len(made)}.py"
        path.write_text(code, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, path.stem, module)
        spec.loader.exec_module(module)
        made.append(module)
        return module

    return load


def digests(module: ModuleType) -> dict[str, str]:
    """Of everything in the module that can be registered."""
    greeter = module.Greeter()
    return {
        "function": code_digest(module.greet),
        "part of one": code_digest(partial(module.greet, "ann")),
        "decorated": code_digest(module.decorated),
        "class": code_digest(module.Greeter),
        "object": code_digest(greeter),
        "method": code_digest(greeter.before),
    }


def test_the_same_code_elsewhere_has_the_same_name_and_each_piece_another(loaded: Callable[[str], ModuleType]) -> None:
    one, other = digests(loaded(CODE)), digests(loaded(f"# moved\n{CODE}"))

    assert one == other
    assert all(one.values())
    assert one["function"] == one["part of one"]
    assert one["class"] == one["object"] == one["method"]
    assert len({one["function"], one["decorated"], one["class"]}) == 3


def test_other_code_has_another_name(loaded: Callable[[str], ModuleType]) -> None:
    one, other = digests(loaded(CODE)), digests(loaded(CODE.replace("hello", "good bye")))

    assert not set(one.values()) & set(other.values())


def test_what_has_no_source_has_no_name() -> None:
    made: dict[str, object] = {}
    exec("def greet(): return 1", made)

    assert code_digest(len) == ""
    assert code_digest(None) == code_digest()
    greet = made["greet"]
    assert callable(greet)
    assert code_digest(greet) == ""
