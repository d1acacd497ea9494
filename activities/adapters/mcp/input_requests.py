"""Convert between an MCP server's requests for input and Loom's, for all versions of the protocol."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitRequestURLParams,
    ElicitResult,
    InputResponse,
    SamplingMessage,
    TextContent,
)
from mcp_types import (
    InputRequest as ServerRequest,
)

from loom.activities.toolbox.mcp_tool import McpCall
from loom.activities.toolbox.untrusted_text import defused, defused_json
from loom.domain.core.errors import ToolExecutionError
from loom.domain.core.messages import canonical, short_digest
from loom.domain.core.tool_calls import Verdict
from loom.domain.core.tool_input import InputAnswer, InputRequest, NeededInput
from loom.domain.tools.mcp_servers import visible

QUESTION_LIMIT: Final = 4_000
"""Maximum number of characters in a question and in the schema of its form."""
SAMPLING_LIMIT: Final = 100_000
"""Maximum number of characters in the messages of a model call. They are stored in the workflow history."""
_SHOWN: Final = 500
"""Maximum number of characters that a person sees of the messages of a model call."""

Scrub = Callable[[str], str]
"""Replaces secrets in a text."""


def asked_of_person(params: ElicitRequestParams, scrub: Scrub, *, number: int = 1) -> InputRequest:
    """Return a server's question. `number` tells equal questions of one call apart. Raises ToolExecutionError if the
    question can't be shown.
    """
    message = defused(scrub(visible(params.message)))
    match params:
        case ElicitRequestFormParams(requested_schema=schema):
            form = defused_json(schema)
            if len(message) > QUESTION_LIMIT or len(canonical(form)) > QUESTION_LIMIT:
                raise ToolExecutionError(f"the server's question is longer than {QUESTION_LIMIT} characters")
            key = f"{short_digest(message + canonical(form))}-{number}"
            return InputRequest(key=key, kind="form", message=message, schema=form)
        case ElicitRequestURLParams(url=url):
            if not url.startswith(("https://", "http://")) or len(url) > QUESTION_LIMIT or visible(url) != url:
                raise ToolExecutionError("the server asks a person to open an address that isn't a web address")
            key = f"{short_digest(message + url)}-{number}"
            return InputRequest(key=key, kind="url", message=message[:QUESTION_LIMIT], url=url)


def asked_of_model(
    params: CreateMessageRequestParams, server: str, scrub: Scrub, *, verdict: Verdict, number: int = 1
) -> InputRequest:
    """Return the model call that a server asks for. Raises ToolExecutionError if the rules don't permit it, or if Loom
    doesn't support it.
    """
    if verdict is Verdict.DENY:
        raise ToolExecutionError(f"the MCP server {server} may not call the model: `mcp_sampling({server})` is denied")
    if params.tools:
        raise ToolExecutionError("Loom doesn't support tools in the model calls of MCP servers")
    messages = [_text_of(message, scrub) for message in params.messages]
    system = scrub(visible(params.system_prompt or ""))
    length = len(system) + sum(len(each["text"]) for each in messages)
    if not messages or params.max_tokens < 1 or length > SAMPLING_LIMIT:
        raise ToolExecutionError(
            f"the model call of an MCP server needs messages of at most {SAMPLING_LIMIT} characters, and tokens to"
            " answer with"
        )
    sampling: dict[str, Any] = {"messages": messages, "max_tokens": params.max_tokens}
    if system:
        sampling["system"] = system
    if params.temperature is not None:
        sampling["temperature"] = params.temperature
    return InputRequest(
        key=f"{short_digest(canonical(sampling))}-{number}",
        kind="sampling",
        message=_described(sampling),
        sampling=sampling,
        asks=verdict is Verdict.ASK,
    )


def needed(
    requests: Mapping[str, ServerRequest], state: str | None, call: McpCall, server: str, scrub: Scrub
) -> NeededInput:
    """Return what a server of the protocol 2026-07-28 needs. Raises ToolExecutionError as the functions above do."""
    made = []
    for key, request in requests.items():
        match request:
            case ElicitRequest(params=params):
                made.append((key, asked_of_person(params, scrub)))
            case CreateMessageRequest(params=params):
                made.append((key, asked_of_model(params, server, scrub, verdict=call.sampling)))
            case _:
                raise ToolExecutionError(f"the MCP server {server} asks for its roots, which Loom doesn't have")
    return NeededInput(requests=tuple(_named(key, request) for key, request in made), state=state or "")


def responses(answers: Sequence[InputAnswer], server: str) -> dict[str, InputResponse]:
    """Return the answers for a server of the protocol 2026-07-28. Raises ToolExecutionError if there is no answer from
    the model, because the protocol has no way to say so.
    """
    for answer in answers:
        if answer.kind == "sampling" and answer.action != "accept":
            raise ToolExecutionError(f"the MCP server {server} got no answer from the model: {answer.reason}")
    return {answer.key: response(answer) for answer in answers}


def response(answer: InputAnswer) -> ElicitResult | CreateMessageResult:
    """Return one answer in the form that the protocol has for it. An answer of the model must be an accepted one."""
    if answer.kind == "sampling":
        return CreateMessageResult(
            role="assistant",
            content=TextContent(type="text", text=str(answer.content["text"])),
            model=str(answer.content["model"]),
            stop_reason="maxTokens" if answer.content["stop"] == "length" else "endTurn",
        )
    content = dict(answer.content) if answer.action == "accept" and answer.kind == "form" else None
    return ElicitResult(action=answer.action, content=content)


def _named(key: str, request: InputRequest) -> InputRequest:
    return replace(request, key=key)


def _text_of(message: SamplingMessage, scrub: Scrub) -> dict[str, str]:
    blocks = message.content if isinstance(message.content, list) else [message.content]
    if not all(isinstance(block, TextContent) for block in blocks):
        raise ToolExecutionError("Loom supports only text in the model calls of MCP servers")
    text = "\n".join(block.text for block in blocks if isinstance(block, TextContent))
    return {"role": message.role, "text": scrub(visible(text))}


def _described(sampling: Mapping[str, Any]) -> str:
    text = " ".join(str(sampling["messages"][-1]["text"]).split())
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    count = len(sampling["messages"])
    others = "" if count == 1 else f" ({count} messages)"
    return defused(f'call the model, with at most {sampling["max_tokens"]} tokens, for "{shown}"{others}')
