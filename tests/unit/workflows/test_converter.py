"""What is written into history comes back equal, says what it must, and no more."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, get_args

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure as FailureProto
from temporalio.converter import (
    DefaultFailureConverter,
    PayloadCodec,
    PayloadConverter,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)
from temporalio.exceptions import ApplicationError

from loom.domain.agents.spec import AgentSpec
from loom.domain.core.messages import (
    JsonObject,
    Message,
    Part,
    ResultRef,
    Tail,
    TailItem,
    ToolCall,
    Transcript,
    TranscriptRef,
    Usage,
    transcript_of,
    usage_view,
    user,
)
from loom.domain.core.output_schema import CheckedAnswer
from loom.domain.core.requests import IN_LINE, Budget, RunError, RunRequest, RunResult, RunStatus
from loom.domain.core.tasks import Action, Notice, Origin, Task
from loom.domain.core.tool_calls import Decision, Effect, OpenCall, PreparedCall, ToolResult, ToolSpec, Verdict
from loom.domain.permissions.judge import Mode
from loom.domain.run.activity_payloads import (
    Evaluated,
    EvaluateRequest,
    ModelReply,
    ModelRequest,
    PrepareCallsRequest,
    Prepared,
    PreparedCalls,
    PrepareRequest,
    ToolRequest,
)
from loom.domain.run.chat import ChatAnswer
from loom.domain.run.conversation import Conversation
from loom.domain.run.events import ToolsReturned
from loom.domain.run.retry_policy import Failure, Tries
from loom.domain.run.state import AnswerDraft, Environment, Hold, Notices, OpenCalls, Outcome, Phase, RunState, Spending
from loom.workflows.payload_converter import IN_LINE_BYTES, OUT_OF_LINE_BYTES, data_converter, in_line

CONVERTER: Final[PayloadConverter] = data_converter().payload_converter

# ---- values of every shape -------------------------------------------------------------------------------------

NUMBERS: Final = st.floats(allow_nan=False, allow_infinity=False)
JSON: Final = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers() | NUMBERS | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=3,
)
ALIKE: Final = st.sampled_from(
    [ResultRef(call_id="c", digest="d"), user("c"), user(""), Message(role="tool", tool_call_id="c", content="d")]
)
st.register_type_strategy(datetime, st.datetimes(timezones=st.just(UTC)))
st.register_type_strategy(float, NUMBERS)
st.register_type_strategy(Mapping, lambda kind: mappings(*get_args(kind)))
st.register_type_strategy(RunResult, st.builds(RunResult, structured_output=JSON))
st.register_type_strategy(CheckedAnswer, st.builds(CheckedAnswer, value=JSON))
st.register_type_strategy(ChatAnswer, st.builds(ChatAnswer, structured_output=JSON))
st.register_type_strategy(Outcome, st.builds(Outcome, structured=JSON))


def mappings(key: Any, value: Any) -> st.SearchStrategy[Mapping[Any, Any]]:
    return JSON if value is Any else st.dictionaries(st.from_type(key), st.from_type(value), max_size=3)


st.register_type_strategy(Tail, st.builds(Tail, items=st.lists(ALIKE | st.from_type(Message), max_size=3).map(tuple)))

PAYLOADS: Final = (
    RunState,
    RunResult,
    PrepareRequest,
    Prepared,
    ModelRequest,
    ModelReply,
    PrepareCallsRequest,
    PreparedCalls,
    EvaluateRequest,
    Evaluated,
    ToolRequest,
    ToolResult,
    Task,
    ToolsReturned,
)

# ---- one value of each, by hand --------------------------------------------------------------------------------

AT: Final = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
ORIGIN: Final = Origin(run_id="run-1", root_run_id="run-1", session_id="s-1")
SPEC: Final = AgentSpec(
    name="coder",
    model="openai:gpt",
    tools=(ToolSpec(name="bash", description="Run.", parameters={"type": "object"}, effect=Effect.ONCE, queue="gpu"),),
    permissions={"bash": "ask"},
    mode=Mode.ACCEPT_EDITS,
    temperature=0.0,
)
CALL: Final = ToolCall(id="call_1", name="bash", arguments={"command": "ls", "deep": [{"n": None}]})
OPEN: Final = OpenCall(
    call=CALL,
    plan=PreparedCall(verdict=Verdict.ASK, rule="bash", digest="abc", grants=("bash(ls)",), error_type="validation"),
    asked_at=AT,
    decision=Decision(approved=True, at=AT, by="kim"),
    result=ToolResult(content="", status="error", error_type="lost", stage_ms=(0.0, 1.5)),
    attempt=2,
)
FULL_STATE: Final = RunState(
    run_id="run-1",
    request=RunRequest(task="Do it.", budget=Budget(cost_usd=0.5), metadata={"a": [None]}, permissions={"x": "deny"}),
    began_at=AT,
    phase=Phase.ACTING,
    spec=SPEC,
    environment=Environment(search_attributes=("LoomStatus",)),
    turn=3,
    tries=Tries(failed=1, lost=2, trimmed=1, resent=1),
    retry_at=AT,
    conversation=Conversation(
        transcript=transcript_of(
            [user("Do it.", kind="task"), Message(role="user", content=(Part(type="image", url="http://x"),)),
             Message(role="assistant", tool_calls=(CALL, ToolCall(id="2", name="y", malformed="{"))),
             Message(role="tool", tool_call_id="call_1", is_error=True)]
        ),
        known=TranscriptRef(count=2, digest="0123"),
        produced=frozenset({"call_1", "call_2"}),
        send_spec=True,
    ),
    calls=OpenCalls(open=(OPEN,), grants=("bash(ls)",)),
    inbox=(user("Wait."),),
    answer=AnswerDraft(partial="half", nudges=1),
    spending=Spending(
        usage=Usage(input_tokens=1, output_tokens=2, cached_tokens=3, model_calls=4),
        cost_micros=None, tool_calls=9, warned=True,
    ),
    hold=Hold(by="kim", at=AT),
    outcome=Outcome(status=RunStatus.FAILED, error=RunError(type="X", message="m", context={"n": 1})),
    notices=Notices(pending=(Notice(action=Action.PAUSED, key="k", at=AT, result={}),)),
)  # fmt: skip


def there_and_back(value: Any, kind: Any) -> Any:
    return read(write(value), kind)


def write(value: Any) -> Payload:
    return CONVERTER.to_payloads([value])[0]


def read(payload: Payload, kind: Any) -> Any:
    return CONVERTER.from_payloads([payload], [kind])[0]


@pytest.mark.parametrize("kind", PAYLOADS, ids=lambda kind: kind.__name__)
def test_every_payload_comes_back_equal(kind: type) -> None:
    @settings(max_examples=settings().max_examples // 5)
    @given(st.from_type(kind))
    def check(value: object) -> None:
        assert there_and_back(value, kind) == value

    check()


def test_a_full_state_comes_back_equal_and_typed() -> None:
    back = there_and_back(FULL_STATE, RunState)
    assert back == FULL_STATE
    assert (type(back.phase), type(back.conversation.produced), type(back.transcript)) == (Phase, frozenset, Transcript)


def test_runs_with_equal_specs_share_one() -> None:
    spec = AgentSpec(
        name="writer", model="demo", tools=(ToolSpec(name="read_file", description="Read.", parameters={}),)
    )

    first, second = (there_and_back(Prepared(spec=spec, execution=run), Prepared) for run in ("first", "second"))
    carried = there_and_back(replace(FULL_STATE, spec=spec), RunState)
    other = there_and_back(Prepared(spec=replace(spec, model="openai:any")), Prepared)

    assert first.spec is second.spec is carried.spec
    assert other.spec == replace(spec, model="openai:any")


def test_a_fresh_state_says_only_what_it_was_given() -> None:
    fresh = RunState(run_id="run-1", request=RunRequest(task="Do it."), began_at=AT)
    written = {"run_id": "run-1", "request": {"task": "Do it."}, "began_at": "2026-01-02T03:04:05.000678Z"}
    assert json.loads(write(fresh).data) == written
    assert there_and_back(fresh, RunState) == fresh


def test_a_result_is_written_with_every_key_of_the_contract() -> None:
    result = RunResult(
        status=RunStatus.FAILED,
        output="",
        structured_output=None,
        completed_explicitly=False,
        turns=0,
        usage=usage_view(Usage()),
        cost=0.0,
        quality_metrics=None,
        tool_calls=0,
        artifacts=(),
        error=RunError(type="LoomError", message="no"),
    )
    written = json.loads(write(result).data)
    assert written == {
        "status": "failed",
        "output": "",
        "structured_output": None,
        "completed_explicitly": False,
        "turns": 0,
        "usage": {"input_tokens": 0, "output_tokens": 0, "cached_tokens": 0, "total_tokens": 0, "model_calls": 0},
        "cost": 0.0,
        "quality_metrics": None,
        "tool_calls": 0,
        "artifacts": [],
        "error": {"type": "LoomError", "message": "no", "context": {}},
    }
    broken = replace(result, output="a\ud83d")
    assert json.loads(write(broken).data) == {**written, "output": "a\ufffd"}
    handed_on = replace(result, children=({"run_id": "r/d1-1"},), own={"cost": 0.0})
    assert set(json.loads(write(handed_on).data)) == {*written, "children", "own"}


def test_items_of_a_tail_are_told_apart() -> None:
    items: tuple[TailItem, ...] = (
        ResultRef(call_id="c", digest="d"),
        user("c"),
        Message(role="tool", tool_call_id="c"),
    )
    back = there_and_back(Tail(items=items), Tail)
    assert [type(item) for item in back.items] == [ResultRef, Message, Message]


def test_results_and_failures_in_one_mapping_are_told_apart() -> None:
    outcomes: Mapping[str, ToolResult | Failure] = {
        "a": ToolResult(content="message"),
        "b": Failure(kind="lost", type="X", message="content", context={"content": "x", "status": "error"}),
    }
    value = ToolsReturned(outcomes=outcomes)
    assert there_and_back(value, ToolsReturned) == value
    assert there_and_back(outcomes, Mapping[str, ToolResult | Failure]) == outcomes


def test_zero_false_and_nothing_are_written_where_they_are_not_the_default() -> None:
    state = replace(
        FULL_STATE,
        spending=Spending(cost_micros=None),
        spec=replace(SPEC, temperature=0.0, tools=(), max_output_tokens=0),
    )
    assert there_and_back(state, RunState) == state


# Lengths are the contract of "history stays small": what grows here grows every turn of every run.
TYPICAL: Final[tuple[tuple[object, int], ...]] = (
    (
        ModelRequest(
            origin=ORIGIN,
            turn=4,
            spec_digest="a1b2c3d4e5f6",
            tail=Tail(
                base=TranscriptRef(count=7, digest="0123456789ab"),
                items=(ResultRef(call_id="call_abc", digest="ab0123456789"),),
            ),
        ),
        220,
    ),
    (
        ModelReply(
            message=Message(role="assistant", content="I look.", tool_calls=(CALL,)),
            plans=(PreparedCall(rule="read_file", effect=Effect.READ, parallel=True),),
            stop="tools",
            usage=Usage(input_tokens=3000, output_tokens=50, cached_tokens=2500, model_calls=1),
            cost_micros=1234,
        ),
        330,
    ),
    (ToolRequest(origin=ORIGIN, turn=4, call_id="call_abc", tool="read_file", workspace="/w", execution="01a2"), 160),
    (ToolResult(content="a" * 60, stage_ms=(0.1, 0.2, 0.3, 0.1, 4.5, 0.2)), 115),
)


@pytest.mark.parametrize(("value", "limit"), TYPICAL, ids=[type(value).__name__ for value, _ in TYPICAL])
def test_typical_payloads_are_small(value: Any, limit: int) -> None:
    assert len(write(value).data) <= limit
    assert there_and_back(value, type(value)) == value


@pytest.mark.parametrize("hint", [None, Any, object])
def test_without_a_type_a_payload_is_plain_json(hint: Any) -> None:
    assert there_and_back(Usage(input_tokens=3), hint) == {"input_tokens": 3}
    assert there_and_back([1, "ä", None, 1.5, {"a": True}], hint) == [1, "ä", None, 1.5, {"a": True}]
    assert CONVERTER.from_payloads([write("x")]) == ["x"]


def test_the_sdks_other_encodings_are_kept() -> None:
    values: tuple[Any, ...] = (None, b"\0", StringValue(value="x"), {}, "x")
    assert [dict(write(value).metadata)["encoding"] for value in values] == [
        b"binary/null",
        b"binary/plain",
        b"json/protobuf",
        b"json/plain",
        b"json/plain",
    ]
    assert there_and_back(b"\0\xff", bytes) == b"\0\xff"
    assert there_and_back(StringValue(value="x"), StringValue) == StringValue(value="x")
    assert there_and_back(None, Message) is None


def test_a_model_of_the_users_own_is_written_whole() -> None:
    class Settings(BaseModel):
        name: str
        size: int = 3

    assert write(Settings(name="a")).data == b'{"name":"a","size":3}'
    assert there_and_back(Settings(name="a", size=4), Settings) == Settings(name="a", size=4)


def test_half_a_surrogate_pair_costs_a_character_and_not_the_run() -> None:
    broken: JsonObject = {"command": "a\ud83d"}
    message = Message(role="assistant", content="\udc00 ä", tool_calls=(replace(CALL, arguments=broken),))
    mended = replace(message, content="\ufffd ä", tool_calls=(replace(CALL, arguments={"command": "a\ufffd"}),))
    assert there_and_back(message, Message) == mended
    assert there_and_back(broken, None) == {"command": "a\ufffd"}
    assert there_and_back({"\ud83d": 1, "\ud83d\ude00": 2}, None) == {"\ufffd": 1, "😀": 2}


def test_a_type_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="Field required"):
        read(write({"turn": 1}), ModelRequest)


def test_failures_are_the_sdks() -> None:
    converter = data_converter()
    assert converter.failure_converter_class is DefaultFailureConverter
    failure = FailureProto()
    converter.failure_converter.to_failure(ApplicationError("m", {"a": 1}, type="T"), CONVERTER, failure)
    back = converter.failure_converter.from_failure(failure, CONVERTER)
    assert isinstance(back, ApplicationError)
    assert (back.type, back.details) == ("T", ({"a": 1},))


class Shelf(StorageDriver):
    """Keeps payloads in a list."""

    def __init__(self) -> None:
        self.kept: list[Payload] = []

    def name(self) -> str:
        return "shelf"

    async def store(self, context: StorageDriverStoreContext, payloads: Any) -> list[StorageDriverClaim]:
        del context
        self.kept += map(deepcopy, payloads)  # the SDK turns a failure's payloads into references in place
        return [StorageDriverClaim(claim_data={"n": str(len(self.kept) - 1)})]

    async def retrieve(self, context: StorageDriverRetrieveContext, claims: Any) -> list[Payload]:
        del context
        return [self.kept[int(claim.claim_data["n"])] for claim in claims]


async def test_only_large_payloads_go_to_the_storage() -> None:
    shelf = Shelf()
    converter = data_converter(shelf)
    small, large = ToolResult(content="a" * 1000), ToolResult(content="a" * OUT_OF_LINE_BYTES)
    written = [*await converter.encode([small]), *await converter.encode([large])]
    assert len(shelf.kept) == 1
    assert written[1].ByteSize() < 400
    assert await converter.decode(written, [ToolResult, ToolResult]) == [small, large]
    assert data_converter().external_storage is None


class Hiding(PayloadCodec):
    """Hides the whole payload, but for what says where it stays."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        kept = [{name: data for name, data in each.metadata.items() if name == IN_LINE} for each in payloads]
        return [
            Payload(metadata={"encoding": b"hidden", **of}, data=b"0" * 100 + each.SerializeToString())
            for each, of in zip(payloads, kept, strict=True)
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload.FromString(each.data[100:]) for each in payloads]


def result_with(output: str) -> RunResult:
    return RunResult(
        status=RunStatus.COMPLETED,
        output=output,
        structured_output=None,
        completed_explicitly=False,
        turns=1,
        usage=usage_view(Usage()),
        cost=0.0,
        quality_metrics=None,
        tool_calls=0,
        artifacts=(),
        error=None,
    )


@pytest.mark.parametrize("codec", [None, Hiding()], ids=["plain", "codec"])
@pytest.mark.parametrize(
    ("size", "is_stored"),
    [(OUT_OF_LINE_BYTES - 999, False), (OUT_OF_LINE_BYTES, False), (IN_LINE_BYTES - 999, False), (IN_LINE_BYTES, True)],
)
async def test_a_result_stays_in_line_up_to_a_limit(size: int, codec: PayloadCodec | None, *, is_stored: bool) -> None:
    shelf = Shelf()
    converter = data_converter(shelf, codec)
    result = result_with("ä" * (size // 2))
    failure = FailureProto()
    await converter.encode_failure(ApplicationError("m", result, type="T"), failure)
    written = [*await converter.encode([result]), *failure.application_failure_info.details.payloads]
    assert len(shelf.kept) == (2 if is_stored else 0)
    assert await converter.decode(written, [RunResult, RunResult]) == [result, result]


async def test_an_answer_to_a_query_is_marked_only_if_it_is_large() -> None:
    small, large = (in_line(CONVERTER, {"text": "x" * size}) for size in (1000, OUT_OF_LINE_BYTES))
    shelf = Shelf()
    assert (dict(small.metadata), IN_LINE in large.metadata) == ({"encoding": b"json/plain"}, True)
    assert await data_converter(shelf)._external_store_payload_sequence([large]) == [large]
    assert shelf.kept == []
