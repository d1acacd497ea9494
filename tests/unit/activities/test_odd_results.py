"""Results and errors of users' functions that JSON can't represent: only the odd value is replaced."""

import json
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, RootModel, SecretStr, field_serializer
from pydantic.dataclasses import dataclass as pydantic_dataclass

from loom import LoomApp
from loom.activities.ports import ToolContext
from loom.activities.toolbox.error_reasons import reason_of
from loom.activities.toolbox.user_tools.output import to_output
from loom.domain.core.errors import ToolExecutionError


@dataclass
class Row:
    when: Any
    raw: Any


class Order(BaseModel):
    number: int = 1
    note: Any = None


class Pair(NamedTuple):
    a: Any
    b: Any


class Raw(Enum):
    ODD = b"\xff"


class Unprintable:
    def __repr__(self) -> NoReturn:
        raise RuntimeError("no text")

    __str__ = __repr__


class Broken(dict[str, Any]):
    def items(self) -> NoReturn:
        raise RuntimeError("no items")


class Failing(BaseModel):
    def model_dump(self, **_: Any) -> NoReturn:
        raise RuntimeError("no dump")


NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)
ODD: list[tuple[Callable[[], Any], Any]] = [
    (lambda: b"\xff", "\\xff"),
    (lambda: b"\xff" * 2000, "(2,000 bytes)"),
    (lambda: bytearray(b"ok"), "ok"),
    (lambda: "caf\udce9.txt", "caf\\xe9.txt"),
    (lambda: "\ud83d", "\N{REPLACEMENT CHARACTER}"),
    (lambda: Path("caf\udce9.txt"), "caf\\xe9.txt"),
    (lambda: NOON, "2026-03-29T12:00:00Z"),
    (lambda: Row(NOON, b"\xff"), {"when": "2026-03-29T12:00:00Z", "raw": "\\xff"}),
    (lambda: Row(1, Row(2, Unprintable())), {"when": 1, "raw": {"when": 2, "raw": "<Unprintable object>"}}),
    (lambda: Order(note=[b"\xff", 2]), {"number": 1, "note": ["\\xff", 2]}),
    (lambda: Pair(1, b"\xff"), [1, "\\xff"]),
    (lambda: {b"\xff"}, ["\\xff"]),
    (lambda: frozenset({1}), [1]),
    (lambda: deque([1, 2]), [1, 2]),
    (lambda: Decimal("1.50"), "1.50"),
    (lambda: math.nan, "NaN"),
    (lambda: -math.inf, "-Infinity"),
    (lambda: Raw.ODD, "\\xff"),
    (lambda: ValueError("why"), "ValueError: why"),
    (lambda: {b"\xff": 1, (1, 2): 2, None: 3, "\udce9": 4}, {"\\xff": 1, "1,2": 2, "None": 3, "\\xe9": 4}),
    (Unprintable, "<Unprintable object>"),
    (lambda: 10**100, 10**100),
]


@pytest.mark.parametrize(("odd", "shown"), ODD)
def test_only_the_odd_value_of_a_result_is_replaced(odd: Callable[[], Any], shown: Any) -> None:
    text = to_output({"good": [1, "ü", None], "odd": odd()})
    assert isinstance(text, str)
    text.encode()
    assert json.loads(text) == {"good": [1, "ü", None], "odd": shown}


GOOD = st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"]))


@given(
    st.recursive(
        st.tuples(GOOD, st.sampled_from(ODD)),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
        max_leaves=10,
    )
)
def test_any_nesting_of_odd_values_is_json_that_keeps_the_good_ones(sketch: Any) -> None:
    text = to_output({"all": _filled(sketch, shown=False)})
    assert isinstance(text, str)
    assert json.loads(text.encode()) == {"all": _filled(sketch, shown=True)}


def _filled(sketch: Any, *, shown: bool) -> Any:
    match sketch:
        case dict():
            return {name: _filled(each, shown=shown) for name, each in sketch.items()}
        case list():
            return [_filled(each, shown=shown) for each in sketch]
        case (good, (odd, expected)):
            return [good, expected if shown else odd()]


class Account(BaseModel):
    name: str = "ann"
    password: str = Field(default="hunter2", exclude=True)
    card: str = "4111-1111"
    code: str = "4111-2222"
    pin: SecretStr = SecretStr("4111-3333")
    odd: Any = b"\xff"

    @field_serializer("card")
    def _last(self, card: str) -> str:
        return f"ends in {card[-4:].replace('1', '*')}"

    @field_serializer("code", when_used="json")
    def _masked(self, _code: str) -> str:
        return "***"


class Unserializable(Account):
    shy: str = Field(default="hunter2", repr=False)

    def model_dump(self, **_: Any) -> NoReturn:
        raise RuntimeError("no dump")


@dataclass
class Login:
    name: str = "ann"
    password: str = field(default="hunter2", repr=False)
    odd: Any = b"\xff"


@pydantic_dataclass
class Checked:
    name: str = "ann"
    password: str = Field(default="hunter2", exclude=True)
    odd: Any = b"\xff"


@pytest.mark.parametrize(
    ("kind", "odd"),
    [
        *((kind, odd) for kind in (Account, Checked) for odd in (b"\xff", Unprintable(), [b"\xff"])),
        *((kind, odd) for kind in (Unserializable, Login) for odd in (b"\xff", {"a": [b"\xff"]})),
    ],
)
def test_an_odd_value_reveals_no_hidden_field(kind: Callable[..., Any], odd: Any) -> None:
    for value in (kind(odd=odd), [kind(odd=odd)], {"deep": {"er": kind(odd=odd)}}):
        text = str(to_output(value))
        assert "hunter2" not in text
        assert "ann" in text
        assert "4111-3333" not in text


@pytest.mark.parametrize("kind", [Account, Checked])
def test_an_excluded_field_stays_hidden_in_another_model(kind: Callable[..., Any]) -> None:
    for value in (Order(note=kind()), Order(note=[kind(), {"a": kind()}]), Rows([kind()])):
        text = str(to_output(value))
        assert "hunter2" not in text
        assert "ann" in text


def test_the_other_fields_of_a_model_keep_their_own_form() -> None:
    assert json.loads(str(to_output(Account()))) == {
        "name": "ann",
        "card": "ends in ****",
        "code": "***",
        "pin": "**********",
        "odd": "\\xff",
    }


class Rows(RootModel[list[Any]]):
    pass


def test_a_model_of_a_list_stays_a_list() -> None:
    assert json.loads(str(to_output(Rows([1, b"\xff"])))) == [1, "\\xff"]


def test_keys_with_the_same_text_all_stay() -> None:
    assert json.loads(str(to_output({b"\xff": 1, "\\xff": 2, "\\xff (2)": 3, "a": Unprintable()}))) == {
        "\\xff": 1,
        "\\xff (2)": 2,
        "\\xff (2) (2)": 3,
        "a": "<Unprintable object>",
    }


def test_a_value_that_contains_itself_ends() -> None:
    loop: dict[str, Any] = {"good": 1}
    loop["again"] = loop
    assert json.loads(str(to_output(loop))) == {"good": 1, "again": "(a value that contains itself)"}
    shared = [b"\xff"]
    assert json.loads(str(to_output({"a": shared, "b": shared}))) == {"a": ["\\xff"], "b": ["\\xff"]}
    deep: Any = b"\xff"
    for _ in range(500):
        deep = {"below": deep}
    assert "(nested too deeply)" in str(to_output({"good": 1, "deep": deep}))


def test_values_whose_own_code_fails_are_described() -> None:
    assert json.loads(str(to_output({"good": 1, "odd": Broken(), "raw": b"\xff"})))["good"] == 1
    assert to_output(Failing()) == "{}"


def test_a_text_with_bytes_that_are_not_utf8_stays_readable() -> None:
    assert to_output("caf\udce9.txt") == "caf\\xe9.txt"


def several() -> None:
    inner = ExceptionGroup("inside", [KeyError("two"), OSError("caf\udce9")])
    raise ExceptionGroup("several", [ValueError("one"), inner])


def several_that_end() -> None:
    raise BaseExceptionGroup("ends", [SystemExit("bye")])


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (several, "several failed: ExceptionGroup: several\n- ValueError: one\n- KeyError: 'two'\n- OSError: caf\\xe9"),
        (several_that_end, "several_that_end failed: BaseExceptionGroup: ends\n- SystemExit: bye"),
    ],
)
async def test_a_group_of_errors_tells_every_reason(function: Callable[[], None], says: str) -> None:
    tool = LoomApp().register_tool(function)
    told = ToolContext(workspace=Path("/"), run_id="r", call_id="c", idempotency_key="k", timeout=20)
    with structlog.testing.capture_logs(), pytest.raises(ToolExecutionError) as caught:
        await tool.run(tool.parse({}), told)
    assert caught.value.message == says


def test_the_reasons_of_a_large_group_are_bounded() -> None:
    group: ExceptionGroup[Exception] = ExceptionGroup("many", [ValueError("x" * 5000) for _ in range(100)])
    for _ in range(200):
        group = ExceptionGroup("deep", [group])
    assert len(reason_of(group)) < 50_000
    assert reason_of(ExceptionGroup("many", [ValueError(str(n)) for n in range(30)])).endswith(
        "- ValueError: 19\n- and more"
    )


def test_an_error_without_a_text_is_named() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert reason_of(Silent()) == "Silent"
    assert reason_of(KeyError("a")) == "KeyError: 'a'"


def test_an_attribute_that_a_dataclass_lacks_is_told_with_those_that_it_has() -> None:
    with pytest.raises(AttributeError) as caught:
        Row(1, 2).zzz  # type: ignore[attr-defined]  # noqa: B018
    assert reason_of(caught.value) == "AttributeError: 'Row' object has no attribute 'zzz'; it has: raw, when"
