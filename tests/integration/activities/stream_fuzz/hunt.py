"""Send random bodies to the real providers through a real HTTP server, and compare what they read."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from loom.activities.adapters.models.anthropic_provider import AnthropicProvider
from loom.activities.adapters.models.openai_provider import OpenAIProvider
from loom.activities.adapters.models.responses_provider import ResponsesProvider
from loom.activities.ports import ModelAnswer, ModelCall
from loom.domain.core.errors import LoomError
from loom.domain.core.messages import user
from tests.integration.activities.stream_fuzz.anthropic_events import anthropic_events
from tests.integration.activities.stream_fuzz.bodies import Body, Fault, Sent, body_of
from tests.integration.activities.stream_fuzz.openai_events import openai_events
from tests.integration.activities.stream_fuzz.replies import Read, read, said
from tests.integration.activities.stream_fuzz.replies import Said as Reply
from tests.integration.activities.stream_fuzz.responses_events import responses_events

EVENTS: Final[Mapping[str, Callable[[Random, Reply], Sequence[Sent]]]] = {
    "chat": openai_events,
    "messages": anthropic_events,
    "responses": responses_events,
}
_FAULTS: Final[tuple[Fault, ...]] = ("",) * 7 + ("error", "garbage", "reason", "cut", "reset")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A body, and what it says."""

    name: str
    protocol: str
    said: Reply
    body: Body


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A body that was read wrongly."""

    case: Case
    problem: str

    def __str__(self) -> str:
        return f"{self.case.name} ({self.case.protocol}, {self.case.body.fault or 'whole'}): {self.problem}"


@dataclass(kw_only=True)
class Report:
    """What came of the bodies."""

    bodies: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)


def case_of(seed: str, number: int) -> Case:
    """Return the case with this number."""
    dice = Random(f"{seed}/{number}")
    protocol = dice.choice(tuple(EVENTS))
    reply = said(dice)
    body = body_of(dice, EVENTS[protocol](dice, reply), dice.choice(_FAULTS))
    return Case(name=f"{seed}/{number}", protocol=protocol, said=reply, body=body)


@dataclass(frozen=True, kw_only=True)
class Heard:
    """What a provider has read and streamed."""

    answer: ModelAnswer
    text: str
    thinking: str


class Providers:
    """Providers of all protocols, and the server that they ask."""

    def __init__(self, url: str, bodies: dict[str, Body]) -> None:
        self._bodies = bodies
        self._by_protocol: Mapping[str, OpenAIProvider | AnthropicProvider | ResponsesProvider] = {
            "chat": OpenAIProvider(api_key="k", base_url=url),
            "messages": AnthropicProvider(api_key="k", base_url=url),
            "responses": ResponsesProvider(api_key="k", base_url=url),
        }
        self._asked = 0

    async def ask(self, protocol: str, body: Body) -> Heard:
        """Let the provider of a protocol read this body. Raises what it raises."""
        self._asked += 1
        text: list[str] = []
        thinking: list[str] = []
        call = ModelCall(
            model=f"m-{self._asked}",
            system="",
            messages=(user("hello"),),
            timeout=30,
            on_thinking=thinking.append,
            on_taken_back=text.clear,
        )
        self._bodies[call.model] = body
        try:
            answer = await self._by_protocol[protocol].answer(call, text.append)
        finally:
            del self._bodies[call.model]
        return Heard(answer=answer, text="".join(text), thinking="".join(thinking))

    async def aclose(self) -> None:
        """Close the connections."""
        for provider in self._by_protocol.values():
            await provider.aclose()


async def hunted(providers: Providers, seed: str, numbers: Sequence[int], at_once: int = 8) -> Report:
    """Return what came of the bodies with these numbers."""
    report = Report()
    waiting = iter(numbers)

    async def try_them() -> None:
        for number in waiting:
            case = case_of(seed, number)
            outcome, problem = await _tried(providers, case)
            report.bodies += 1
            report.outcomes[f"{case.body.fault or 'whole'}: {outcome}"] += 1
            report.findings.extend([Finding(case=case, problem=problem)] if problem else ())

    await asyncio.gather(*(try_them() for _ in range(at_once)))
    return report


async def _tried(providers: Providers, case: Case) -> tuple[str, str]:
    """Return what came of a body, and what is wrong with it, if anything."""
    fault = case.body.fault
    try:
        heard = await providers.ask(case.protocol, case.body)
    except LoomError as error:
        error.message.encode()
        return type(error).__name__, "" if fault else f"{type(error).__name__}: {error.message}"
    except Exception as error:  # noqa: BLE001 - this is what the hunt is for
        return type(error).__name__, f"not a LoomError: {error!r}"
    if fault in ("error", "garbage", "reason"):
        return "an answer", f"read as {heard}"
    return "read", "; ".join(_problems(heard, case))


def _problems(heard: Heard, case: Case) -> Iterator[str]:
    """Yield what was read wrongly."""
    message, usage, expected = heard.answer.message, heard.answer.usage, read(case.said)
    got = Read(
        thinking=heard.thinking,
        text=message.text,
        calls=tuple((each.id, each.name, each.arguments) for each in message.tool_calls),
        usage=(usage.input_tokens, usage.output_tokens, usage.cached_tokens),
        stop=heard.answer.stop,
        model=heard.answer.model,
    )
    if case.body.fault:  # the usage may come after the end of the reply
        got = replace(got, usage=expected.usage)
    for name in ("thinking", "text", "calls", "usage", "stop", "model"):
        if getattr(got, name) != getattr(expected, name):
            yield f"{name} is {getattr(got, name)!a}, but should be {getattr(expected, name)!a}"
    if heard.text != message.text:
        yield f"streamed {heard.text!a}"
    if any(each.malformed is not None for each in message.tool_calls):
        yield "malformed arguments"
    json.dumps(message.metadata, ensure_ascii=False).encode()


@asynccontextmanager
async def providers_and_server() -> AsyncIterator[Providers]:
    """Serve bodies by the name of the model."""
    bodies: dict[str, Body] = {}
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            while await _exchange(reader, writer, bodies):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            serving.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    providers = Providers(f"http://{host}:{port}", bodies)
    try:
        yield providers
    finally:
        await providers.aclose()
        server.close()
        for task in tuple(serving):
            task.cancel()


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bodies: Mapping[str, Body]) -> bool:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = head.partition("content-length:")[2].partition("\r\n")[0]
    body = bodies[json.loads(await reader.readexactly(int(length)))["model"]]
    head_of_reply = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in body.chunks)
    is_reset = body.fault == "reset"
    writer.write(head_of_reply + chunks + (b"" if is_reset else b"0\r\n\r\n"))
    await writer.drain()
    return not is_reset
