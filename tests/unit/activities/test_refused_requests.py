"""A call that the provider refuses is repeated without what it may have refused."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from loom.activities.ports import ModelAnswer, ModelCall, OnDelta
from loom.activities.refused_kinds import KINDS
from loom.activities.refused_requests import RefusalMemory, RefusalRetries, without_refused
from loom.domain.core.errors import (
    LLMConfigurationError,
    LLMContextLengthError,
    LLMUnavailableError,
    LoomError,
    NoPermitError,
)
from loom.domain.core.messages import Message, Part, ToolCall, Usage, left_out
from loom.domain.core.tasks import Origin
from loom.domain.core.tool_calls import ToolSpec

_IMAGE = Part(type="image", media_type="image/png", data="iVBORw0KGgo=", name="chart.png")
_PDF = Part(type="file", media_type="application/pdf", data="JVBERi0=", name="terms.pdf")


@dataclass
class Server:
    """Refuses the calls that a rule describes, as a provider does."""

    refuses: Callable[[ModelCall], bool]
    error: LoomError = field(default_factory=lambda: LLMConfigurationError("rejected (400): bad request", refused=400))
    got: list[ModelCall] = field(default_factory=list)

    async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
        self.got.append(call)
        if self.refuses(call):
            raise self.error
        on_delta("fine")
        return ModelAnswer(message=Message(role="assistant", content="fine"), stop="end", usage=Usage())


async def reply_to(call: ModelCall, server: Server) -> Message:
    return (await RefusalRetries(server, RefusalMemory()).answer(call, lambda _: None)).message


def conversation(*newest: Message, tools: tuple[ToolSpec, ...] = ()) -> ModelCall:
    """A conversation in which the model has called a tool, and the newest messages are its results."""
    ids = [message.tool_call_id or "" for message in newest if message.role == "tool"]
    calls = tuple(ToolCall(id=each, name="look", arguments={"at": "x\x00y"}) for each in ids)
    asked = Message(role="assistant", content="", tool_calls=calls, metadata={"reasoning": {"content": "hm"}})
    return ModelCall(model="m", system="", messages=(Message(role="user", content="go"), asked, *newest), tools=tools)


def result(content: str | tuple[Part, ...], call_id: str = "call-1") -> Message:
    return Message(role="tool", content=content, tool_call_id=call_id, name="look")


def parts_of(call: ModelCall, kind: str) -> list[Part]:
    parts = (message.content for message in call.messages if not isinstance(message.content, str))
    return [part for each in parts for part in each if part.type == kind]


RULES = {
    "pictures": (conversation(result((_IMAGE,))), lambda call: bool(parts_of(call, "image"))),
    "documents": (conversation(result((_PDF,))), lambda call: bool(parts_of(call, "file"))),
    "ids": (conversation(result("ok", "call-1")), lambda call: call.messages[-1].tool_call_id == "call-1"),
    "characters": (conversation(result("a\x00b")), lambda call: "\x00" in str(call.messages[-1].content)),
    "characters of arguments": (conversation(result("ok")), lambda call: "\x00" in str(call.messages)),
    "thinking": (conversation(result("ok")), lambda call: "reasoning" in call.messages[1].metadata),
    "a long result": (conversation(result("ab" * 5000)), lambda call: len(call.messages[-1].text) > 3000),
    "any result of the tool": (conversation(result("secret")), lambda call: "secret" in call.messages[-1].text),
    "calls": (conversation(result("ok")), lambda call: any(message.tool_calls for message in call.messages)),
}


@pytest.mark.parametrize("name", RULES)
async def test_the_call_is_repeated_until_the_provider_accepts_it(name: str) -> None:
    call, refuses = RULES[name]
    server = Server(refuses)
    reply = await reply_to(call, server)
    assert reply.text == "fine"
    assert len(server.got) <= len(KINDS) + 1
    sent = [(each.system, each.messages, each.tools) for each in server.got]
    assert all(one != other for place, one in enumerate(sent) for other in sent[:place])  # nothing is sent twice


@pytest.mark.parametrize("name", RULES)
async def test_what_was_refused_is_never_sent_again(name: str) -> None:
    call, refuses = RULES[name]
    reply = await reply_to(call, Server(refuses))
    again = Server(refuses)
    await reply_to(replace(call, messages=(*call.messages, reply, Message(role="user", content="next"))), again)
    assert not any(map(refuses, again.got[:1])) or name in ("any result of the tool", "ids", "a long result")
    assert len(again.got) == 1


async def test_the_model_reads_what_was_left_out() -> None:
    call, refuses = RULES["pictures"]
    server = Server(refuses)
    note = left_out(await reply_to(call, server))
    assert note is not None
    assert note["kinds"][-1] == "pictures"
    assert "bad request" in note["because"]
    (told,) = parts_of(server.got[-1], "text")
    assert "chart.png" in told.text
    assert "refused" in told.text


async def test_what_the_servers_words_name_is_left_out_first() -> None:
    call = conversation(result((_IMAGE, _PDF)))
    error = LLMConfigurationError("Could not process image", refused=400)
    server = Server(lambda call: bool(parts_of(call, "image")), error)
    note = left_out(await reply_to(call, server))
    assert note is not None
    assert note["kinds"] == ["pictures"]
    assert parts_of(server.got[-1], "file") == [_PDF]


async def test_another_model_gets_what_the_first_one_refused() -> None:
    call, refuses = RULES["pictures"]
    reply = await reply_to(call, Server(refuses))
    other = without_refused(replace(call, model="other", messages=(*call.messages, reply)))
    assert parts_of(other, "image") == [_IMAGE]


async def test_older_pictures_stay_if_only_the_newest_one_was_refused() -> None:
    older = conversation(result((_IMAGE,)))
    newer = replace(_IMAGE, data="AAAA")
    asked = replace(older.messages[1], tool_calls=(ToolCall(id="call-2", name="look"),))
    call = replace(older, messages=(*older.messages, asked, result((newer,), "call-2")))
    server = Server(lambda call: any(part.data == "AAAA" for part in parts_of(call, "image")))
    reply = await reply_to(call, server)
    assert parts_of(server.got[-1], "image") == [_IMAGE]
    assert parts_of(without_refused(replace(call, messages=(*call.messages, reply))), "image") == [_IMAGE]


async def test_a_tool_with_an_odd_schema_is_simplified_and_then_left_out() -> None:
    odd = {"type": "object", "properties": {"where": {"anyOf": [{"type": "string"}, {"type": "null"}], "$x": 1}}}
    tool = ToolSpec(name="find", description="Find.", parameters=odd)
    server = Server(lambda call: "anyOf" in str(call.tools))
    await reply_to(conversation(result("ok"), tools=(tool,)), server)
    (sent,) = server.got[-1].tools
    assert sent.parameters == {"type": "object", "properties": {"where": {"type": "string"}}}
    server = Server(lambda call: any(each.name == "find it!" for each in call.tools))
    await reply_to(conversation(result("ok"), tools=(tool, replace(tool, name="find it!"))), server)
    assert [each.name for each in server.got[-1].tools] == ["find"]


async def test_a_request_that_is_never_accepted_fails_with_the_first_error() -> None:
    server = Server(lambda _: True)
    with pytest.raises(LLMConfigurationError, match="bad request"):
        await reply_to(conversation(result((_IMAGE, _PDF))), server)
    assert len(server.got) <= len(KINDS) + 1


async def test_the_first_request_of_a_run_is_repeated_too() -> None:
    tool = ToolSpec(name="find", description="", parameters={"type": "object", "title": "Find"})
    call = ModelCall(model="m", system="", messages=(Message(role="user", content="go"),), tools=(tool,))
    assert (await reply_to(call, Server(lambda call: "title" in str(call.tools)))).text == "fine"


@pytest.mark.parametrize(
    "error",
    [
        LLMConfigurationError("wrong key"),
        LLMUnavailableError("away"),
        LLMContextLengthError("too long", tokens=9, limit=8),
        LLMContextLengthError("too long"),
    ],
)
async def test_other_errors_are_not_about_the_content(error: LoomError) -> None:
    server = Server(lambda _: True, error)
    with pytest.raises(type(error)):
        await reply_to(conversation(result((_IMAGE,))), server)
    assert len(server.got) == 1


async def test_heavy_pictures_are_left_out_of_a_request_that_is_too_large() -> None:
    heavy = replace(_IMAGE, data="A" * 4_000_000)
    server = Server(lambda call: bool(parts_of(call, "image")), LLMContextLengthError("Request Entity Too Large"))
    reply = await reply_to(conversation(result((heavy,))), server)
    assert (left_out(reply) or {})["kinds"] == ["pictures"]


async def test_a_failure_of_another_kind_during_a_repetition_is_raised() -> None:
    class Flaky(Server):
        async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
            if self.got:
                raise LLMContextLengthError("too long", limit=10)
            return await super().answer(call, on_delta)

    with pytest.raises(LLMContextLengthError):
        await reply_to(conversation(result((_IMAGE,))), Flaky(lambda _: True))


async def test_a_call_that_waits_for_a_permit_goes_on_with_the_next_kind() -> None:
    class Rare(Server):
        """Accepts two requests per attempt."""

        left: int = 2

        async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
            if not self.left:
                raise NoPermitError("the limit is reached", retry_after=1.0)
            self.left -= 1
            return await super().answer(call, on_delta)

    call = replace(conversation(result("ok")), origin=Origin(run_id="r"))
    server, memory = Rare(lambda call: any(message.tool_calls for message in call.messages)), RefusalMemory()
    for _ in range(len(KINDS)):
        server.left = 2
        try:
            answer = await RefusalRetries(server, memory).answer(call, lambda _: None)
            break
        except NoPermitError:
            continue
    assert answer.message.text == "fine"
    sent = [(each.system, each.messages) for each in server.got]
    assert all(one != other for place, one in enumerate(sent) for other in sent[:place])
    assert memory.of(call) is None


async def test_text_before_a_refusal_is_taken_back_and_charged() -> None:
    class Late(Server):
        async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
            on_delta("The ans")
            try:
                return await super().answer(call, on_delta)
            except LoomError as error:
                error.used = Usage(input_tokens=5, model_calls=1)
                raise

    told: list[str] = []
    call = replace(conversation(result((_IMAGE,))), on_taken_back=lambda: told.append("<back>"))
    server = Late(lambda call: bool(parts_of(call, "image")), LLMConfigurationError("bad image", refused=400))
    answer = await RefusalRetries(server, RefusalMemory()).answer(call, told.append)
    assert told == ["The ans", "<back>", "The ans", "fine"]
    assert answer.usage.input_tokens == 5


async def test_kinds_that_were_left_out_in_vain_are_not_left_out_for_good() -> None:
    call, refuses = RULES["any result of the tool"]
    note = left_out(await reply_to(call, Server(refuses)))
    assert note is not None
    assert note["kinds"] == ["results"]


async def test_tools_that_are_too_many_are_named_to_the_model() -> None:
    tools = tuple(ToolSpec(name=f"t{n}", description="", parameters={"properties": None}) for n in range(80))
    error = LLMConfigurationError("too many tools: at most 64", refused=400)
    server = Server(lambda call: len(call.tools) > 64, error)
    await reply_to(conversation(result("ok"), tools=tools), server)
    assert "t64, t65" in server.got[-1].system
