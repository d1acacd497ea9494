"""What the first look at generated Python refuses, and that it refuses it wherever it stands."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.activities.toolbox.static_check import MODULES, NAMES, complaints

HARMLESS = '''
from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass


@dataclass
class Word:
    text: str

    def __len__(self) -> int:
        return len(self.text)


def count(text: str) -> str:
    """Counts words; `__class__` in a docstring is only words."""
    words = Counter(text.split())
    best = max(words, key=words.get, default="")
    print(f"{len(words)} words, {math.sqrt(2):.2f}", "{} {}".format(1, 2), file=None)
    return json.dumps({"best": best, "length": getattr(Word(best), "text", "")})


if __name__ == "__main__":
    print(count("a b a"))
'''


def test_plain_computing_is_fine() -> None:
    assert complaints(HARMLESS) == ()


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import os", ("line 1: importing `os` is not allowed: use modules that need no files, programs or network",)),
        (
            "import os.path as p",
            ("line 1: importing `os` is not allowed: use modules that need no files, programs or network",),
        ),
        (
            "x = 1\nfrom os import path",
            ("line 2: importing `os` is not allowed: use modules that need no files, programs or network",),
        ),
        ("from logging import os", ("line 1: importing `os` from `logging` is not allowed",)),
        ("from random import _os as o", ("line 1: importing `_os` from `random` is not allowed",)),
        ("from . import x", ("line 1: a relative import is not allowed: there is no package around this code",)),
        ("open('x')", ("line 1: `open` is not allowed: compute with the arguments only",)),
        ("f = eval", ("line 1: `eval` is not allowed: compute with the arguments only",)),
        ("x = (", ("line 1: this is not Python: '(' was never closed",)),
        ("x = '\0'", ("line 1: this is not Python: source code string cannot contain null bytes",)),
    ],
)
def test_a_complaint_names_the_line_and_the_way_out(code: str, found: tuple[str, ...]) -> None:
    assert complaints(code) == found


@pytest.mark.parametrize(
    "code",
    [
        "().__class__.__bases__[0].__subclasses__()",
        "getattr((), '__class__')",
        "getattr((), '__cl' + 'ass__')",
        "g = getattr; g((), name)",
        "__builtins__['open']",
        "f'{().__class__}'",
        "'{0.__class__}'.format(1)",
        "('{0.__cl' + 'ass__}').format(1)",
        "template.format(x)",
        "import random; random._os.system('ls')",
        "import operator; operator.attrgetter('a.__class__')(x)",
        "from operator import attrgetter",
        "match x:\n  case object(__class__=c): pass",
        "def f(a=open): pass",
        "@eval\ndef f(): pass",
        "class A(metaclass=__import__): pass",
        "[open for _ in range(3)]",
        "lambda: exec",
        "(x for x in y).gi_frame.f_back.f_globals",
        "try: 1/0\nexcept Exception as e: e.__traceback__.tb_frame",
        "type('X', (), {'__init_subclass__': 1})",
        "vars()['__loader__']",
        "setattr(x, 'y', 1)",
        "async def f():\n  await __import__('os')",
        "with open('x') as f: pass",
        "x: open = 1",
    ],
)
def test_ways_around_are_refused(code: str) -> None:
    assert complaints(code) != ()


PLACES = st.sampled_from(
    [
        "{}",
        "x = [{} for _ in y]",
        "def f(a={}):\n    pass",
        "lambda: {}",
        "class A:\n    b = {}",
        "f'{{{}}}'",
        "@{}\ndef f(): pass",
        "async def f():\n    await {}",
        "match {}:\n    case 1: pass",
        "x[{}:1]",
        "if a:\n  while b:\n    try:\n      c({})\n    finally: pass",
    ]
)


@given(place=PLACES, name=st.sampled_from(sorted(NAMES)))
def test_a_name_is_refused_wherever_it_stands(place: str, name: str) -> None:
    assert complaints(place.format(name)) != ()


@given(module=st.sampled_from(sorted(MODULES)), rest=st.sampled_from(["", ".x", ".x.y"]), name=st.sampled_from("ab"))
def test_a_module_is_refused_however_it_is_imported(module: str, rest: str, name: str) -> None:
    for code in (
        f"import {module}{rest}",
        f"import math, {module}{rest} as {name}",
        f"from {module}{rest} import {name}",
    ):
        assert complaints(f"def f():\n    {code}") != ()
    assert complaints(f"from math import {module} as {name}") != ()


@given(st.text())
def test_any_text_gets_an_answer(code: str) -> None:
    assert all(complaint.startswith("line ") for complaint in complaints(code))


def test_code_nested_beyond_reason_gets_an_answer() -> None:
    assert complaints("(" * 5000 + ")" * 5000) != ()
