"""Searching what was said and done in a run, in the records of its history."""

from loom.domain.core.messages import Message, ResultRef, Tail, ToolCall, transcript_of, user
from loom.domain.core.tasks import Origin
from loom.domain.core.tool_calls import ToolResult
from loom.domain.core.tool_names import SEARCH_HISTORY
from loom.domain.history.past_turns import ModelAttempt, Record, ToolAttempt
from loom.domain.history.run_search import PASSAGE, Passage, passages_of, search_passages
from loom.domain.run.activity_payloads import ModelReply, ModelRequest, ToolRequest

ORIGIN = Origin(run_id="run")


def said(turn: int, *messages: Message, reply: str = "", calls: tuple[ToolCall, ...] = ()) -> ModelAttempt:
    """A model call that sent these new messages, and its reply."""
    request = ModelRequest(origin=ORIGIN, turn=turn, spec_digest="d", tail=Tail(items=messages))
    answer = Message(role="assistant", content=reply, tool_calls=calls)
    return ModelAttempt(request=request, reply=ModelReply(message=answer))


def did(turn: int, tool: str, content: str) -> ToolAttempt:
    request = ToolRequest(origin=ORIGIN, turn=turn, call_id=f"c{turn}", tool=tool)
    return ToolAttempt(request=request, result=ToolResult(status="success", content=content))


CALL = ToolCall(id="c1", name="write_file", arguments={"path": "ops/kafka.toml", "content": "partitions = 12"})
RECORDS: tuple[Record, ...] = (
    said(1, user("The owner of the broker is Wang Lin.", by="ann"), reply="I write the settings.", calls=(CALL,)),
    did(1, "write_file", "Wrote 15 characters."),
    said(2, user("夜间网关最终定为七号方案。"), reply="We drop Rabbit and go with Kafka."),
)


def test_messages_replies_calls_and_results_are_found_with_their_turn() -> None:
    passages = passages_of(RECORDS)

    found = {query: search_passages(passages, query, 1) for query in ("broker owner", "kafka partitions", "夜间网关")}

    assert found == {
        "broker owner": (Passage(turn=1, by="ann", text="The owner of the broker is Wang Lin."),),
        "kafka partitions": (
            Passage(turn=1, by="call of write_file", text="path: ops/kafka.toml\ncontent: partitions = 12"),
        ),
        "夜间网关": (Passage(turn=2, by="user", text="夜间网关最终定为七号方案。"),),
    }
    assert search_passages(passages, "zebra", 5) == ()


def test_a_message_that_was_sent_again_and_earlier_searches_are_found_once() -> None:
    search = ToolCall(id="c3", name=SEARCH_HISTORY, arguments={"query": "broker owner"})
    again = said(3, user("The owner of the broker is Wang Lin.", by="ann"), reply="", calls=(search,))

    passages = passages_of((*RECORDS, again, did(3, SEARCH_HISTORY, "The owner of the broker is Wang Lin.")))

    assert passages == passages_of(RECORDS)


def test_a_summary_is_searched_only_if_earlier_executions_are_gone() -> None:
    summary = Message(role="system", content="<key_facts>the vault is no. 9</key_facts>", metadata={"compressed": True})

    assert passages_of((said(1, summary),)) == ()


def test_long_texts_are_divided_and_nothing_is_lost() -> None:
    line = "".join(f"{n:05}," for n in range(400))
    text = "\n".join([*(f"row {n} of the table" for n in range(200)), line])

    passages = passages_of((did(1, "bash", text),))

    assert max(len(passage.text) for passage in passages) <= PASSAGE
    for piece in (*text.splitlines()[:-1], *line.split(",")):
        assert any(piece in passage.text for passage in passages)


def test_references_to_results_are_not_messages() -> None:
    tail = Tail(base=transcript_of([user("x")]).ref, items=(ResultRef(call_id="c", digest="d"),))
    attempt = ModelAttempt(request=ModelRequest(origin=ORIGIN, turn=2, spec_digest="d", tail=tail), error="away")

    assert passages_of((attempt,)) == ()
