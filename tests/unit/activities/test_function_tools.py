"""Users' functions at work: what they are given, what becomes of what they return, raise and never finish."""

import asyncio
import json
import os
import sys
import threading
import time
from base64 import b64decode
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from functools import partial
from operator import call
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from examples.tools.shop import app as shop
from loom import Ask, Deny, LoomApp, Part, ToolCall
from loom.activities.ports import Tool, ToolContext, ToolOutput
from loom.activities.toolbox.hooks import objection_to
from loom.activities.toolbox.user_tools.json_results import as_json
from loom.activities.toolbox.user_tools.output import PARTS_LIMIT, part_of, to_output
from loom.domain.agents.hook_steps import Moment
from loom.domain.agents.hooks import Hook, Objection, stricter_of, strictest
from loom.domain.core.errors import (
    ExecutionAbortedError,
    ToolExecutionError,
    ToolExecutionTimeout,
    ToolValidationError,
)
from loom.domain.core.tool_calls import Verdict
from loom.domain.permissions.judge import Judgement, judge
from loom.testing.waiting import eventually

PNG = b"\x89PNG\r\n\x1a\n"


def tool_of(function: Any, **options: Any) -> Tool:
    """The tool that an app makes of it."""
    return LoomApp().register_tool(function, **options)


def context(place: Path = Path("/"), seconds: float = 20, progress: Callable[[str], None] = print) -> ToolContext:
    """A call's context."""
    return ToolContext(
        workspace=place, run_id="r", call_id="c", idempotency_key="k", timeout=seconds, progress=progress
    )


async def run(tool: Tool, told: ToolContext | None = None, **arguments: object) -> str | ToolOutput:
    """What the tool gives back."""
    with structlog.testing.capture_logs():
        return await tool.run(tool.parse(arguments), told or context())


class Size(StrEnum):
    """How large."""

    BIG = "big"


@dataclass
class Point:
    """Where."""

    x: int


class Order(BaseModel):
    """What."""

    number: int


async def test_arguments_arrive_as_the_types_that_were_declared() -> None:
    seen: list[Any] = []

    def take(  # type: ignore[no-untyped-def]
        a: int, /, b: Size, point: Point, order: Order, *, when: date, rest=None, n: int = 4, maybe: int | None = 3
    ) -> None:
        seen.extend([a, b, point, order, when, rest, n, maybe])

    tool = tool_of(take)
    given_ones: dict[str, object] = {
        "a": "1",
        "b": "big",
        "point": {"x": 2},
        "order": {"number": 3},
        "when": "2026-01-02",
        "rest": [1],
    }
    await run(tool, None, **{**given_ones, "n": None, "maybe": None})
    assert seen == [1, Size.BIG, Point(x=2), Order(number=3), date(2026, 1, 2), [1], 4, None]


@pytest.mark.parametrize("odd", ["NaN", "-Infinity", "1e999", float("nan"), float("inf")])
def test_a_number_that_json_does_not_have_never_reaches_a_function(odd: object) -> None:
    def take(ratio: float = 1.0, ratios: tuple[float, ...] = (), *, point: Order | None = None) -> None: ...

    for arguments in ({"ratio": odd}, {"ratios": [0.5, odd]}):
        with pytest.raises(ToolValidationError, match=r"must be a (finite )?number|contains NaN or an infinite"):
            tool_of(take).parse(arguments)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "`shelf` is missing: add it (integer)"),
        ({"shelf": 10}, "`shelf` must be at most 9, got 10: send integer"),
        ({"shelf": 1, "shelff": 2}, "`shelff` is not an argument: leave it out; did you mean `shelf`?"),
        ({"shelf": {"a": "\ud800"}}, "`shelf` contains half a surrogate pair"),
    ],
)
def test_wrong_arguments_are_refused_by_name(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ToolValidationError) as caught:
        shop.get_tool("stock").parse(arguments)
    assert says in caught.value.message


def test_no_argument_of_a_user_s_is_taken_for_the_time_limit() -> None:
    async def ping(timeout: float) -> None: ...

    assert getattr(tool_of(ping).parse({"timeout": 1e300}), "timeout", None) is None


async def test_the_context_is_given_and_never_asked_for() -> None:
    def by_name(context) -> str:  # type: ignore[no-untyped-def]
        return str(context.call_id)

    async def by_type(told: ToolContext | None = None) -> str:
        return told.idempotency_key if told else ""

    def a_word(context: str) -> str:
        return context

    assert tool_of(by_name).spec.parameters["properties"] == {}
    assert [await run(tool_of(by_name)), await run(tool_of(by_type))] == ["c", "k"]
    assert await run(tool_of(a_word), context="text") == "text"


async def test_functions_that_block_run_at_the_same_time_and_not_on_the_event_loop() -> None:
    together = threading.Barrier(20, timeout=20)

    def wait() -> str:
        together.wait()
        return threading.current_thread().name

    tool = tool_of(wait)
    assert set(await asyncio.gather(*(run(tool) for _ in range(20)))) == {"loom-tool"}


async def test_a_function_that_cannot_be_stopped_is_given_up_and_said_to_be_still_at_work() -> None:
    release = threading.Event()
    said: list[str] = []

    def stuck(context: ToolContext) -> str:
        context.progress("begun")
        release.wait(20)
        context.progress("too late")
        return "late"

    with pytest.raises(ToolExecutionTimeout, match=r"stuck has not returned after 0.2 s and cannot be stopped"):
        await run(tool_of(stuck), context(seconds=0.2, progress=said.append))
    release.set()
    await eventually(_no_thread_is_left)
    await asyncio.sleep(0)
    assert said == ["begun"]


async def test_a_function_is_stopped_at_its_next_line_and_its_model_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_ENDS", "_PATIENCE"):  # on a busy machine, it takes longer than 10 ms to end
        monkeypatch.setattr(f"loom.activities.toolbox.user_tools.call.{limit}", 60)
    closed = threading.Event()

    def busy() -> None:
        try:
            while True:
                with suppress(Exception):  # this doesn't keep it from ending
                    time.sleep(0.001)
        finally:
            closed.set()

    with pytest.raises(ToolExecutionTimeout, match=r"busy has not returned after 1 s and was stopped: it may be half"):
        await run(tool_of(busy), context(seconds=1))
    assert closed.is_set()


async def test_a_function_that_is_aborted_where_it_cannot_be_stopped_is_said_to_be_still_at_work() -> None:
    said, late = list[str](), list[str]()
    (begins, begun), (ends, end) = os.pipe(), os.pipe()

    def stuck() -> None:
        steps: tuple[Callable[[], object], ...] = (partial(os.write, begun, b"x"), partial(os.read, ends, 1))
        deque(map(call, steps), maxlen=0)  # no Python in between
        late.append("its next line")

    task = asyncio.create_task(run(tool_of(stuck), context(progress=said.append)))
    await asyncio.to_thread(os.read, begins, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    os.write(end, b"x")
    await eventually(_no_thread_is_left)
    assert said == ["\nstuck was stopped, but may still be running, and may take effect\n"]
    assert late == []
    for pipe in (begins, begun, ends, end):
        os.close(pipe)


async def test_a_function_that_goes_on_although_it_was_stopped_is_refused_its_context() -> None:
    begun, refused = asyncio.Event(), list[str]()

    def stubborn(context: ToolContext) -> None:
        try:
            context.progress("begun")
            while True:
                time.sleep(0.001)
        except asyncio.CancelledError:
            for use in (context.check, lambda: context.progress("late")):
                try:
                    use()
                except ExecutionAbortedError as error:
                    refused.append(error.message)

    task = asyncio.create_task(run(tool_of(stubborn), context(progress=lambda _: begun.set())))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(_no_thread_is_left)
    assert [message.partition(":")[0] for message in refused] == ["this call is over"] * 2


async def _no_thread_is_left() -> bool | None:
    return None if any(thread.name == "loom-tool" for thread in threading.enumerate()) else True


async def test_a_cancelled_call_lets_go_at_once_and_ends_a_generator_where_it_would_yield_next() -> None:
    closed = threading.Event()

    def endless() -> Iterator[str]:
        try:
            while True:
                yield "x"
        finally:
            closed.set()

    begun = asyncio.Event()
    tool = tool_of(endless)
    task = asyncio.create_task(run(tool, context(progress=lambda _: begun.set())))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    async def ended() -> bool | None:
        return closed.is_set() or None

    await eventually(ended)


async def test_an_async_generator_is_closed_when_its_call_is_cancelled() -> None:
    begun, closed = asyncio.Event(), asyncio.Event()

    async def waiting() -> AsyncIterator[str]:
        try:
            yield "x"
            begun.set()
            await asyncio.sleep(60)
        finally:
            closed.set()

    task = asyncio.create_task(run(tool_of(waiting)))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed.is_set()


@pytest.mark.parametrize("name", ["track", "stock"])
async def test_what_is_yielded_is_progress_and_output(name: str) -> None:
    said: list[str] = []
    arguments: dict[str, object] = {"parcel": "P1"} if name == "track" else {"shelf": 2}
    output = await run(shop.get_tool(name), context(progress=said.append), **arguments)
    assert len(said) == 3
    assert "".join(said) == output


async def test_a_generator_may_yield_pictures_and_return_its_end() -> None:
    def drawing() -> Generator[object, None, str]:
        yield "a"
        yield part_of(PNG)
        yield {"b": 1}
        return "end"

    picture = Part(type="image", media_type="image/png", data="iVBORw0KGgo=")
    assert await run(tool_of(drawing)) == ToolOutput(text='a{"b":1}\nend', parts=(picture,))


async def test_a_flood_of_progress_ends_where_a_result_would() -> None:
    said: list[str] = []

    def flood() -> Iterator[str]:
        for _ in range(300):
            yield "x" * 1000

    output = await run(tool_of(flood), context(progress=said.append))
    assert (len("".join(said)), len(str(output))) == (10_000, 300_000)


def fails() -> None:
    raise ValueError("the shop is shut")


async def fails_later() -> None:
    raise KeyError("name")


def fails_by_leaving() -> None:
    sys.exit("bye")


async def fails_by_leaving_later() -> None:
    sys.exit("bye")


def fails_by_stopping() -> None:
    raise StopIteration("odd")


async def fails_by_cancelling() -> None:
    raise asyncio.CancelledError


async def fails_on_time() -> None:
    raise TimeoutError("its own")


def fails_on_purpose() -> None:
    raise ToolExecutionError("call the baker first")


def fails_half_way() -> Iterator[str]:
    yield "begun"
    raise ValueError("then broke")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (fails, "fails failed: ValueError: the shop is shut"),
        (fails_later, "fails_later failed: KeyError: 'name'"),
        (fails_by_leaving, "fails_by_leaving failed: SystemExit: bye"),
        (fails_by_leaving_later, "fails_by_leaving_later failed: SystemExit: bye"),
        (fails_by_stopping, "fails_by_stopping failed: RuntimeError: StopIteration: odd"),
        (fails_by_cancelling, "fails_by_cancelling failed: something that it waited for was cancelled"),
        (fails_on_time, "fails_on_time failed: TimeoutError: its own"),
        (fails_on_purpose, "call the baker first"),
        (fails_half_way, "fails_half_way failed: ValueError: then broke"),
    ],
)
async def test_whatever_a_function_raises_is_a_tool_s_error_that_the_model_reads(
    function: Callable[[], object], says: str
) -> None:
    with pytest.raises(ToolExecutionError) as caught:
        await run(tool_of(function))
    assert caught.value.message == says


@pytest.mark.parametrize(
    ("value", "output"),
    [
        ("text", "text"),
        (None, ""),
        (7, "7"),
        (True, "true"),
        (float("inf"), '"Infinity"'),
        ({"ü": [1, None]}, '{"ü":[1,null]}'),
        (Order(number=3), '{"number":3}'),
        ([Order(number=3), Point(x=1)], '[{"number":3},{"x":1}]'),
        (Size.BIG, "big"),
        (date(2026, 1, 2), '"2026-01-02"'),
        ((part for part in "ab"), '["a","b"]'),
        (ToolOutput(text="x", is_warning=True), ToolOutput(text="x", is_warning=True)),
        (Part(type="text", text="x"), "x"),
        (PNG, ToolOutput(parts=(Part(type="image", media_type="image/png", data="iVBORw0KGgo="),))),
        (b"%PDF-", ToolOutput(parts=(Part(type="file", media_type="application/pdf", data="JVBERi0="),))),
        (b"\0", ToolOutput(parts=(Part(type="file", media_type="application/octet-stream", data="AA=="),))),
        (
            ["see", Part(type="image", url="https://x/y.png"), 3],
            ToolOutput(text="see\n3", parts=(Part(type="image", url="https://x/y.png"),)),
        ),
    ],
)
def test_every_value_is_something_that_a_model_can_read(value: object, output: object) -> None:
    assert to_output(value) == output


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
    )
)
def test_json_comes_back_as_it_was(value: object) -> None:
    text = value if isinstance(value, str) else as_json(value)
    assert value == (text if isinstance(value, str) else json.loads(text))


def test_files_are_shown_and_what_is_too_large_is_named(tmp_path: Path) -> None:
    (tmp_path / "note.md").write_text("# hi")
    (tmp_path / "bars.png").write_bytes(PNG)
    (tmp_path / "large.png").write_bytes(PNG.ljust(PARTS_LIMIT + 1, b"x"))
    picture = Part(type="image", media_type="image/png", data="iVBORw0KGgo=", name="bars.png")
    assert to_output(tmp_path / "note.md") == "# hi"
    assert to_output(tmp_path / "bars.png") == ToolOutput(parts=(picture,))
    assert f"large.png was left out: {PARTS_LIMIT + 1} bytes" in str(to_output(tmp_path / "large.png"))
    assert "No such file" in str(to_output(tmp_path / "gone.png"))


def test_parts_that_are_too_much_together_are_left_out_with_a_warning() -> None:
    half = part_of(PNG.ljust(PARTS_LIMIT // 2, b"x"), name="a.png")
    output = to_output([half, half, half])
    assert isinstance(output, ToolOutput)
    assert (len(output.parts), output.is_warning) == (2, True)
    assert "a.png was left out" in output.text


@pytest.mark.parametrize(
    ("part", "kind", "media_type"),
    [
        (Part(type="image", media_type="image/jpeg", data="iVBORw0KGgo="), "image", "image/png"),
        (Part(type="image", media_type="image/png", data="AAAA"), "file", "application/octet-stream"),
        (Part(type="image", media_type="image/png", data="iVBO\nRw0KGgoA" + "A" * 36), "image", "image/png"),
        (Part(type="image", media_type="image/png", data="no base64!"), "file", "application/octet-stream"),
        (Part(type="image", media_type="image/svg+xml", data="PHN2Zz4="), "image", "image/svg+xml"),
        (Part(type="file", media_type="application/pdf", data="AAAA"), "file", "application/octet-stream"),
        (Part(type="image", url="https://x/y.png"), "image", ""),
    ],
)
def test_what_a_provider_would_refuse_the_whole_conversation_for_is_no_picture(
    part: Part, kind: str, media_type: str
) -> None:
    output = to_output(part)
    assert isinstance(output, ToolOutput)
    assert [(each.type, each.media_type) for each in output.parts] == [(kind, media_type)]


async def test_the_example_draws_a_picture() -> None:
    output = await run(shop.get_tool("chart"), values=[3, 101])
    assert isinstance(output, ToolOutput)
    assert (output.text, output.is_warning, output.parts[0].media_type) == ("Bars end at 100.", True, "image/png")
    assert b64decode(output.parts[0].data).startswith(PNG)


async def test_the_class_form_is_run_with_its_model_or_with_fields() -> None:
    class Fields(BaseModel):
        a: int
        b: int = 2

    class Sums:
        name = "sums"
        description = "Add."
        args_schema = Fields

        def __call__(self, a: int, context: object, **rest: int) -> int:
            assert isinstance(context, ToolContext)
            return a + rest["b"]

    assert await run(shop.get_tool("weather"), town="Ulm") == "In Ulm it rains."
    assert await run(tool_of(Sums), a=1) == "3"


@pytest.mark.parametrize(
    ("answer", "missing"),
    [
        (lambda: True, None),
        (lambda: None, None),
        (lambda: "", None),
        (lambda: "set ACME_KEY", "set ACME_KEY"),
        (lambda: False, "it reports that it is currently unavailable: use another tool"),
        (lambda: 1 / 0, "its check failed with ZeroDivisionError: division by zero"),
    ],
)
def test_a_tool_says_whether_it_can_work_here(answer: Callable[[], object], missing: str | None) -> None:
    assert tool_of(fails, available=answer).is_available() == missing


def paths(one: Path, more: list[Path] = [], name: str = "x", place: Path | None = None) -> list[str]:  # noqa: B006
    """Take paths."""
    return [str(path) for path in (one, *more, *([place] if place else []))] + [name]


async def test_paths_are_held_inside_the_workspace(tmp_path: Path) -> None:
    place = tmp_path.resolve()
    (place / "link").symlink_to("/etc")
    tool = tool_of(paths)
    assert json.loads(str(await run(tool, context(place), one="a/../b", more=["c"], place="d"))) == [
        *(f"{place}/b", f"{place}/c", f"{place}/d", "x")
    ]
    for arguments in ({"one": "../x"}, {"one": "/etc/passwd"}, {"one": "link/passwd"}, {"one": "a", "more": ["../x"]}):
        parsed = tool.parse(arguments)
        with pytest.raises(ToolValidationError, match="outside the workspace"):
            tool.subjects(parsed, place)
        with pytest.raises(ToolValidationError, match="outside the workspace"):
            tool.run(parsed, context(place))


async def test_paths_of_the_class_form_are_held_inside_the_workspace_too(tmp_path: Path) -> None:
    class Fields(BaseModel):
        file: Path

    class Reads:
        name = "reads"
        description = "Read."
        args_schema = Fields

        def run(self, asked: Fields) -> str:
            return str(asked.file)

    place = tmp_path.resolve()
    tool = tool_of(Reads)
    assert await run(tool, context(place), file="a") == f"{place}/a"
    with pytest.raises(ToolValidationError, match="outside the workspace"):
        tool.run(tool.parse({"file": "../a"}), context(place))


async def test_a_tool_that_works_elsewhere_gets_its_paths_as_they_are(tmp_path: Path) -> None:
    tool = tool_of(paths, scope="system")
    assert json.loads(str(await run(tool, context(tmp_path), one="/etc/passwd"))) == ["/etc/passwd", "x"]
    assert [subject.text for subject in tool.subjects(tool.parse({"one": "/etc/passwd"}), tmp_path)] == [
        "/etc/passwd",
        "x",
    ]


def deploy(stage: str, copies: int = 1, *, fast: bool = False, options: dict[str, str] | None = None) -> None:
    """Deploy."""


def judged(tool: Tool, place: Path, rules: dict[str, str], **arguments: object) -> tuple[Verdict, str]:
    """The verdict of the rules, and the rule."""
    parsed = tool.parse(arguments)
    found = judge(
        tool.spec.name,
        tool.subjects(parsed, place),
        rules,
        arguments=parsed.model_dump(mode="json"),  # type: ignore[attr-defined]
        declared=tool.spec.declared,
    )
    return found.verdict, found.rule


def test_patterns_are_held_against_every_text_number_and_path(tmp_path: Path) -> None:
    tool = tool_of(deploy)
    rules = {"deploy(prod*)": "deny", "deploy(copies:99)": "deny", "deploy": "allow"}
    assert judged(tool, tmp_path, {}, stage="test") == (Verdict.ASK, "declared")
    assert judged(tool, tmp_path, rules, stage="production") == (Verdict.DENY, "deploy(prod*)")
    assert judged(tool, tmp_path, rules, stage="test", copies="99") == (Verdict.DENY, "deploy(copies:99)")
    assert judged(tool, tmp_path, rules, stage="test") == (Verdict.ALLOW, "deploy")
    # Nobody sees into `options`: what is allowed as a whole is asked for where something of it is denied.
    assert judged(tool, tmp_path, rules, stage="test", options={"a": "prod"})[0] is Verdict.ASK
    scoped = {"deploy(test)": "allow", "deploy(1)": "allow", "deploy(false)": "allow"}
    assert judged(tool, tmp_path, scoped, stage="test")[0] is Verdict.ALLOW
    assert judged(tool, tmp_path, scoped, stage="test", copies=2)[0] is Verdict.ASK


def test_who_protects_a_file_protects_it_from_users_tools_too(tmp_path: Path) -> None:
    place = tmp_path.resolve()
    words = shop.get_tool("count_words")
    rules = {"read_file(secret/**)": "deny", "write_file(kept/**)": "deny"}
    assert judged(words, place, rules, path="secret/a.txt")[0] is Verdict.DENY
    assert judged(words, place, rules, path="kept/a.txt")[0] is Verdict.ALLOW
    assert judged(tool_of(paths), place, {**rules, "paths": "allow"}, one="kept/a.txt")[0] is Verdict.DENY


CALL = ToolCall(id="c", name="order_label", arguments={"to": {"town": "Atlantis"}})
ALLOWED = Judgement(verdict=Verdict.ALLOW, rule="built-in", reason="fine")
DENIED = Judgement(verdict=Verdict.DENY, rule="x", reason="no")


def ask(_call: ToolCall, _run_id: str) -> Ask:
    return Ask("who is that?")


async def deny(_call: ToolCall, run_id: str) -> Deny:
    return Deny(f"not in {run_id}")


def nothing(_call: ToolCall, _run_id: str) -> None: ...


def guesses(call: ToolCall, run_id: str) -> None:
    call.args  # type: ignore[attr-defined]  # noqa: B018


def breaks(_call: ToolCall, _run_id: str) -> None:
    raise ValueError("oops")


def babbles(_call: ToolCall, _run_id: str) -> bool:
    return True


async def sleeps(_call: ToolCall, _run_id: str) -> None:
    await asyncio.sleep(60)


def gates(*functions: Callable[..., Any], **options: Any) -> list[Hook]:
    """The functions as registered hooks."""
    return [Hook(moment=Moment.TOOL_CALL, name=each.__name__, function=each, **options) for each in functions]


@pytest.mark.parametrize(
    ("hooks", "rule", "says"),
    [
        ([ask, deny], "hook deny", "not in run"),
        ([nothing, ask], "hook ask", "who is that?"),
        ([breaks], "hook breaks", "the hook breaks blocks this call: it failed with ValueError: oops"),
        (
            [guesses],
            "hook guesses",
            "AttributeError: 'ToolCall' object has no attribute 'args'; did you mean 'arguments'?",
        ),
        ([ask, babbles], "hook babbles", "it returned True instead of None, Deny or Ask"),
        ([sleeps], "hook sleeps", "it gave no answer within 0.1 s"),
    ],
)
async def test_a_gate_that_objects_breaks_or_does_not_answer_blocks(hooks: Any, rule: str, says: str) -> None:
    with structlog.testing.capture_logs():
        found = await objection_to(CALL, "run", gates(*hooks, timeout=0.1 if sleeps in hooks else 20))
    assert found is not None
    assert (found.rule, says in found.answer.reason) == (rule, True)


async def test_gates_without_objection_let_the_rules_decide() -> None:
    assert await objection_to(CALL, "run", []) is None
    assert await objection_to(CALL, "run", gates(nothing)) is None
    assert await objection_to(ToolCall(id="c", name="done"), "run", gates(deny)) is None
    assert await objection_to(CALL, "run", gates(deny, tools=("create_plan",))) is None
    assert await objection_to(CALL, "run", [hook for hook in shop.hooks if isinstance(hook, Hook)]) == Objection(
        hook="only_known_towns", answer=Deny("Atlantis has no post office: ask for another address")
    )


def test_an_objection_only_makes_a_verdict_stricter() -> None:
    asks, denies = Objection(hook="h", answer=Ask("a")), Objection(hook="h", answer=Deny("d"))
    asked = Judgement(verdict=Verdict.ASK, rule="hook h", reason="a", can_be_granted=False)
    assert stricter_of(ALLOWED, None) == ALLOWED
    assert stricter_of(ALLOWED, asks) == asked
    assert stricter_of(DENIED, asks) == DENIED
    assert stricter_of(asked, denies) == Judgement(
        verdict=Verdict.DENY, rule="hook h", reason="d", can_be_granted=False
    )
    assert strictest([asks, denies]) is denies
    assert strictest([]) is None
