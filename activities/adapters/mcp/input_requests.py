"""Convert between an MCP server's requests for input and Loom's, for all versions of the protocol."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

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
from loom.domain.core.errors import ToolExecutionError, ToolValidationError
from loom.domain.core.messages import canonical, short_digest
from loom.domain.core.tool_calls import Verdict
from loom.domain.core.tool_input import InputAnswer, InputRequest, NeededInput
from loom.domain.tools.mcp_servers import visible
from loom.domain.web.urls import WebUrl, has_mixed_scripts, web_url

QUESTION_LIMIT: Final = 4_000
"""Maximum number of characters in a question and in the schema of its form."""
SAMPLING_LIMIT: Final = 100_000
"""Maximum number of characters in the messages of a model call. They are stored in the workflow history."""
_IN_FRAGMENTS: Final = "%/:?[]@!$&'()*+,;=-._~"

Scrub = Callable[[str], str]
"""Replaces secrets in a text."""


def asked_of_person(params: ElicitRequestParams, server: str, scrub: Scrub, *, number: int = 1) -> InputRequest:
    """Return a server's question, which names the server and the host that a person must open.

    `number` tells equal questions of one call apart. Raises ToolExecutionError if the question can't be shown, or if
    its URL could be taken for another one.
    """
    message = defused(scrub(visible(params.message)))
    match params:
        case ElicitRequestFormParams(requested_schema=schema):
            form = defused_json(schema)
            if len(message) > QUESTION_LIMIT or len(canonical(form)) > QUESTION_LIMIT:
                raise ToolExecutionError(f"the server's question is longer than {QUESTION_LIMIT} characters")
            key = f"{short_digest(message + canonical(form))}-{number}"
            return InputRequest(key=key, kind="form", message=f"The MCP server {server} asks: {message}", schema=form)
        case ElicitRequestURLParams(url=url):
            page, address = _page(url)
            key = f"{short_digest(message + url)}-{number}"
            told = f"The MCP server {server} asks you to open a page at {page.authority}: {message[:QUESTION_LIMIT]}"
            return InputRequest(key=key, kind="url", message=told, url=address)


def _page(url: str) -> tuple[WebUrl, str]:
    """Return the page and the complete address in ASCII. Raises ToolExecutionError if it could be taken for another."""
    if len(url) > QUESTION_LIMIT or visible(url) != url:
        raise ToolExecutionError("the server asks a person to open an address that can't be shown")
    try:
        page = web_url(url)
    except ToolValidationError as error:
        raise ToolExecutionError(
            f"the server asks a person to open an address that isn't safe: {error.message}"
        ) from None
    if has_mixed_scripts(page.host):
        raise ToolExecutionError(f"the server asks a person to open {page.host}, a name in letters of several scripts")
    fragment = url.partition("#")[2]
    return page, f"{page}#{quote(fragment, safe=_IN_FRAGMENTS)}" if fragment else str(page)


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
        message=_described(sampling, server),
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
                made.append((key, asked_of_person(params, server, scrub)))
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


def _described(sampling: Mapping[str, Any], server: str) -> str:
    """Return what a person reads who decides about the call: all of its text."""
    system = [f"system: {sampling['system']}"] if "system" in sampling else []
    said = [f"{message['role']}: {message['text']}" for message in sampling["messages"]]
    asked = f"The MCP server {server} asks to call the model, with at most {sampling['max_tokens']} tokens:"
    return defused("\n".join((asked, *system, *said)))
