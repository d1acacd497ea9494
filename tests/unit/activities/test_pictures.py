"""Images and files that tools give, on their way to both providers through their official SDKs."""

from base64 import b64encode
from typing import Any

from loom.activities.adapters.models.anthropic_provider import AnthropicProvider
from loom.activities.adapters.models.openai_provider import OpenAIProvider
from loom.activities.ports import ModelCall
from loom.domain.core.messages import Message, Part, ToolCall, user
from loom.domain.core.tool_calls import ToolResult, tool_message
from loom.testing import model_server as served
from tests.integration.activities.test_providers import ask

DATA = "iVBORw0KGgo="
IMAGE = Part(type="image", media_type="image/png", data=DATA)
REPORT = Part(type="file", media_type="application/pdf", data="JVBERi0=", name="r.pdf")
NOTE = Part(type="file", media_type="text/csv", data=b64encode(b"a,b").decode(), name="n.csv")
SOUND = Part(type="audio", media_type="audio/mpeg", data="SUQz", name="s.mp3")
DRAWING = Part(type="image", media_type="image/svg+xml", data="PHN2Zz4=", name="d.svg")

CALLS = (ToolCall(id="1", name="chart"), ToolCall(id="2", name="read"))
RESULTS = (
    ToolResult(content="2 bars", parts=(IMAGE, REPORT, NOTE)),
    ToolResult(content="heard", parts=(SOUND, DRAWING)),
)


def talk(*results: ToolResult) -> tuple[Message, ...]:
    """A turn with a call for each result."""
    calls = CALLS[: len(results)]
    answers = (tool_message(call, result) for call, result in zip(calls, results, strict=True))
    return user("draw"), Message(role="assistant", tool_calls=calls), *answers


async def sent(kind: Any, *results: ToolResult) -> list[Any]:
    """The messages after the model's calls, as the provider got them."""
    call = ModelCall(model="m-1", system="", messages=talk(*results))
    _, _, server = await ask(kind, served.text("ok"), call)
    return list(server.requests[0].messages[2:])


IN_WORDS = (
    "heard\n(audio that cannot be shown: audio/mpeg, s.mp3, 3 bytes)\n"
    "(image that cannot be shown: image/svg+xml, d.svg, 6 bytes)"
)


async def test_openai_gets_text_results_first_and_then_the_pictures() -> None:
    assert await sent(OpenAIProvider, *RESULTS) == [
        {"role": "tool", "tool_call_id": "1", "content": "2 bars\n(n.csv:)\na,b"},
        {"role": "tool", "tool_call_id": "2", "content": IN_WORDS},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}},
                {"type": "file", "file": {"filename": "r.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}},
            ],
        },
    ]


async def test_openai_is_told_which_call_each_of_several_pictures_is_from() -> None:
    with_picture = ToolResult(content="x", parts=(IMAGE,))
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}}
    assert (await sent(OpenAIProvider, with_picture, with_picture))[-1] == {
        "role": "user",
        "content": [
            {"type": "text", "text": "(from chart, call 1:)"},
            picture,
            {"type": "text", "text": "(from read, call 2:)"},
            picture,
        ],
    }


async def test_anthropic_gets_pictures_and_documents_inside_the_result() -> None:
    (message,) = await sent(AnthropicProvider, *RESULTS)
    first, second = message["content"]
    assert first == {
        "type": "tool_result",
        "tool_use_id": "1",
        "content": [
            {"type": "text", "text": "2 bars"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}},
            {"type": "text", "text": "(n.csv:)\na,b"},
        ],
    }
    assert "\n".join(block["text"] for block in second["content"]) == IN_WORDS


async def test_a_failed_call_is_told_in_text_alone() -> None:
    failure = ToolResult(content="broke", status="error", parts=(IMAGE,))
    (message,) = await sent(AnthropicProvider, failure)
    assert message["content"][0]["content"] == "broke"
    assert message["content"][0]["is_error"] is True
