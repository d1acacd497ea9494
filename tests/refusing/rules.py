"""What real providers refuse, and in which words: a table that a server tests each request against.

A rule of `ALWAYS` holds in every conversation: it is what Loom has to keep in any case, whatever it leaves out or
mends. Of the others each conversation has a few, from its beginning or from a later request on, as when a gateway sends
a conversation to another model. An answer is always possible: what a limit allows is more than what the conversation
begins with, and the system prompt, the task and sound tools break no rule.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, TypeAlias

from loom.domain.core.media import IMAGES
from loom.testing.model_replies import Api
from tests.refusing import media
from tests.refusing.asked import Asked
from tests.refusing.checks import (
    Limits,
    any_content,
    documents_in,
    ends_in_space,
    has_blank_part,
    has_blank_text,
    has_control,
    has_invisible,
    has_noncharacter,
    has_stray_results,
    has_surrogate,
    has_unknown_field,
    ids_in,
    is_empty,
    is_of,
    lacks_results,
    lacks_state,
    names_in,
    no_match,
    pictures_in,
    repeats_ids,
    repeats_roles,
    some_schema,
    some_text,
)
from tests.refusing.words import (
    TOO_LARGE,
    TOO_LONG,
    Words,
    anthropic,
    fastapi,
    google,
    mistral,
    openai,
    plain,
    vllm,
)

Subject: TypeAlias = Literal["names", "ids", "schemas", "pictures", "documents", "texts", "length", "state", "order"]
"""What a client has to change, so that the request is accepted."""

BOTH: Final[frozenset[Api]] = frozenset(("openai", "anthropic"))
OPENAI: Final[frozenset[Api]] = frozenset(("openai",))
ANTHROPIC: Final[frozenset[Api]] = frozenset(("anthropic",))


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One thing that a provider refuses."""

    name: str
    about: Subject
    apis: frozenset[Api] = BOTH
    is_broken: Callable[[Asked, Limits], bool]
    words: Sequence[Words]
    provoked_by: tuple[str, ...] = ()
    """The turns after which a careless client breaks the rule, see `conversations`."""
    from_the_start: bool = True
    """Whether it may hold for the first request, in which a run has nothing to lose and is not mended."""


def _pattern_words(what: str, pattern: str) -> tuple[Words, ...]:
    said = f"string does not match pattern. Expected a string that matches the pattern '{pattern}'."
    return (
        openai(f"Invalid 'messages[3].tool_calls[0].{what}': {said}", "invalid_value"),
        anthropic(f"messages.3.content.0.tool_use.{what.rpartition('.')[2]}: String should match pattern '{pattern}'"),
    )


ALWAYS: Final = (
    Rule(
        name="a call without a result",
        about="order",
        is_broken=lacks_results,
        words=(
            openai(
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each"
                " 'tool_call_id'. The following tool_call_ids did not have response messages: call_1"
            ),
            anthropic(
                "messages.3: `tool_use` ids were found without `tool_result` blocks immediately after: call_1. Each"
                " `tool_use` block must have a corresponding `tool_result` block in the next message."
            ),
            mistral("Not the same number of function calls and responses", "3230"),
        ),
    ),
    Rule(
        name="a result without a call",
        about="order",
        is_broken=has_stray_results,
        words=(
            openai(
                "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with"
                " 'tool_calls'."
            ),
            anthropic(
                "messages.2.content.0: unexpected `tool_use_id` found in `tool_result` blocks: call_1. Each"
                " `tool_result` block must have a corresponding `tool_use` block in the previous message."
            ),
        ),
    ),
    Rule(
        name="an id of two calls",
        about="ids",
        is_broken=repeats_ids,
        words=(
            openai("Duplicate value for 'tool_call_id' of 'call_1' in message[2]"),
            anthropic("messages.3.content.1: `tool_use` ids must be unique"),
            mistral("Duplicate tool call id in assistant message"),
        ),
        provoked_by=("twice the id", "the same id again"),
    ),
    Rule(
        name="two tools of one name",
        about="names",
        is_broken=lambda asked, _: len({name for name, _ in asked.tools}) < len(asked.tools),
        words=(anthropic("tools: Tool names must be unique."), openai("Duplicate function name")),
    ),
    Rule(
        name="an empty message",
        about="texts",
        is_broken=lambda asked, _: any(map(is_empty, asked.messages)),
        words=(
            anthropic(
                "messages.3: all messages must have non-empty content except for the optional final assistant message"
            ),
            mistral("Assistant message must have either content or tool_calls, but not none.", "3240"),
        ),
        provoked_by=("blank text",),
    ),
    Rule(
        name="half a character",
        about="texts",
        is_broken=lambda asked, _: any(
            map(has_surrogate, (*asked.strings, str(asked.tools), str(asked.body.get("system"))))
        ),
        words=(
            anthropic(
                "The request body is not valid JSON: no low surrogate in string: line 1 column 195621 (char 195620)"
            ),
        ),
        provoked_by=("half a character", "half a character as an argument"),
    ),
    Rule(
        name="the assistant speaks last",
        about="order",
        is_broken=lambda asked, _: asked.messages[-1]["role"] == "assistant",
        words=(
            anthropic(
                "This model does not support assistant message prefill. The conversation must end with a user message."
            ),
            mistral(
                "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant", "3230"
            ),
        ),
    ),
    Rule(
        name="space at the end",
        about="texts",
        is_broken=ends_in_space,
        words=(anthropic("messages: final assistant content cannot end with trailing whitespace"),),
    ),
    Rule(
        name="the assistant speaks first",
        about="order",
        is_broken=lambda asked, _: asked.messages[0]["role"] != "user",
        words=(anthropic('messages: first message must use the "user" role'),),
    ),
    Rule(
        name="too many cache breakpoints",
        about="order",
        apis=ANTHROPIC,
        is_broken=lambda asked, _: str(asked.body).count("'cache_control'") > 4,
        words=(anthropic("A maximum of 4 blocks with cache_control may be provided. Found 5."),),
    ),
    Rule(
        name="too many tools",
        about="schemas",
        is_broken=lambda asked, _: len(asked.tools) > 128,
        words=(
            openai(
                "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array"
                " with length 133 instead.",
                "array_above_max_length",
            ),
        ),
    ),
)

NAMES: Final = (
    Rule(
        name="a name with other characters",
        about="names",
        is_broken=lambda asked, _: no_match("[a-zA-Z0-9_-]+", names_in(asked)),
        words=_pattern_words("function.name", "^[a-zA-Z0-9_-]+$"),
        provoked_by=("a name with a mark", "a name with a prefix", "a name of another script", "a name with a space"),
    ),
    Rule(
        name="an empty name",
        about="names",
        is_broken=lambda asked, _: "" in names_in(asked),
        words=(
            openai(
                "Invalid 'messages[3].tool_calls[0].function.name': empty string. Expected a string with minimum"
                " length 1, but got an empty string instead.",
                "empty_string",
            ),
            anthropic("messages.3.content.0.tool_use.name: String should have at least 1 character"),
            google("GenerateContentRequest.contents[2].parts[0].function_response.name: Name cannot be empty."),
        ),
        provoked_by=("an empty name",),
    ),
    Rule(
        name="a long name",
        about="names",
        is_broken=lambda asked, _: max(map(len, names_in(asked)), default=0) > 64,
        words=(
            openai(
                "Invalid 'messages[3].tool_calls[0].function.name': string too long. Expected a string with"
                " maximum length 64, but got a string with length 200 instead.",
                "string_above_max_length",
            ),
            anthropic("messages.3.content.0.tool_use.name: String should have at most 64 characters"),
        ),
        provoked_by=("a long name",),
    ),
    Rule(
        name="a name that no tool has",
        about="names",
        is_broken=lambda asked, _: asked.may_call and not {c.name for c in asked.calls} <= {n for n, _ in asked.tools},
        words=(
            openai(
                "tool call validation failed: attempted to call tool 'nothing' which was not in request.tools",
                "tool_use_failed",
            ),
            google("Function name nothing is not declared in tools."),
        ),
        provoked_by=("a name of no tool", "a name with a mark", "a name with a prefix"),
    ),
)

IDS: Final = (
    Rule(
        name="an id with other characters",
        about="ids",
        is_broken=lambda asked, _: no_match("[a-zA-Z0-9_-]+", ids_in(asked)),
        words=_pattern_words("id", "^[a-zA-Z0-9_-]+$"),
        provoked_by=("an odd id", "an empty id"),
    ),
    Rule(
        name="a long id",
        about="ids",
        is_broken=lambda asked, _: max(map(len, ids_in(asked)), default=0) > 40,
        words=(
            openai(
                "Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length"
                " 40, but got a string with length 64 instead.",
                "string_above_max_length",
            ),
            anthropic("messages.1.content.0.tool_use.id: String should have at most 40 characters"),
        ),
        provoked_by=("a long id",),
    ),
    Rule(
        name="an id that is not nine letters and digits",
        about="ids",
        is_broken=lambda asked, _: no_match("[a-zA-Z0-9]{9}", ids_in(asked)),
        words=(mistral("Tool call id was call_0fypS1hVX but must be a-z, A-Z, 0-9, with a length of 9.", "3280"),),
        provoked_by=("a plain call", "an odd id"),
    ),
)

SCHEMAS: Final = (
    Rule(
        name="an object without properties",
        about="schemas",
        is_broken=some_schema(lambda schema: is_of(schema, "object") and "properties" not in schema),
        words=(
            openai(
                "Invalid schema for function 'observe': In context=(), object schema missing properties.",
                "invalid_function_parameters",
            ),
            google(
                "* GenerateContentRequest.tools[0].function_declarations[1].parameters.properties: should be"
                " non-empty for OBJECT type"
            ),
        ),
        provoked_by=("odd tools",),
    ),
    Rule(
        name="an array without items",
        about="schemas",
        is_broken=some_schema(lambda schema: is_of(schema, "array") and "items" not in schema),
        words=(
            openai(
                "Invalid schema for function 'observe': In context=('properties', 'paths'), array schema missing"
                " items.",
                "invalid_function_parameters",
            ),
            google(
                "* GenerateContentRequest.tools[0].function_declarations[1].parameters.properties[paths].items:"
                " missing field."
            ),
        ),
        provoked_by=("odd tools",),
    ),
    Rule(
        name="a property's name",
        about="schemas",
        is_broken=lambda asked, _: no_match(
            "[a-zA-Z0-9_.-]{1,64}", [name for schema in asked.schemas for name in schema.get("properties") or {}]
        ),
        words=(
            anthropic(
                "tools.3.custom.input_schema.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'"
            ),
        ),
        provoked_by=("odd tools",),
    ),
    Rule(
        name="a choice at the top of a schema",
        about="schemas",
        is_broken=lambda asked, _: any({"anyOf", "oneOf", "allOf"} & set(schema) for _, schema in asked.tools),
        words=(
            anthropic(
                "tools.3.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level"
            ),
            openai(
                "Invalid schema for function 'observe': schema must have type 'object' and not have"
                " 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level.",
                "invalid_function_parameters",
            ),
        ),
        provoked_by=("odd tools",),
    ),
    Rule(
        name="a reference in a schema",
        about="schemas",
        is_broken=some_schema(lambda schema: "$ref" in schema),
        words=(
            google(
                'Invalid JSON payload received. Unknown name "$ref" at'
                " 'tools[0].function_declarations[1].parameters': Cannot find field."
            ),
            openai(
                "Invalid schema for function 'observe': In context=('properties', 'node'), reference can only"
                " point to definitions defined at the top level",
                "invalid_function_parameters",
            ),
        ),
        provoked_by=("odd tools",),
        from_the_start=False,
    ),
    Rule(
        name="a list of types",
        about="schemas",
        is_broken=some_schema(lambda schema: isinstance(schema.get("type"), list)),
        words=(google("Proto field is not repeating, cannot start list."),),
        provoked_by=("odd tools",),
        from_the_start=False,
    ),
    Rule(
        name="a keyword in a schema",
        about="schemas",
        is_broken=some_schema(lambda schema: bool({"patternProperties", "not", "if", "prefixItems"} & set(schema))),
        words=(
            google(
                'Invalid JSON payload received. Unknown name "patternProperties" at'
                " 'tools[0].function_declarations[1].parameters': Cannot find field."
            ),
        ),
        provoked_by=("odd tools",),
        from_the_start=False,
    ),
)

PICTURES: Final = (
    Rule(
        name="a picture that is not base64",
        about="pictures",
        is_broken=any_content(pictures_in, lambda picture, _: not picture.data),
        words=(
            anthropic("messages.3.content.0.tool_result.content.0.image.source.base64.data: Invalid base64 data"),
            openai(
                "Invalid 'messages[3].content[0].image_url.url'. Expected a base64-encoded data URL with an image"
                " MIME type (e.g. 'data:image/png;base64,aW1nIGJ5dGVzIGhlcmU='), but got a value without a valid"
                " image payload.",
                "invalid_value",
            ),
        ),
        provoked_by=("a picture without data",),
    ),
    Rule(
        name="a picture that is cut",
        about="pictures",
        is_broken=any_content(
            pictures_in, lambda picture, _: not media.is_whole(picture.media_type, picture.data or b"")
        ),
        words=(
            anthropic("Could not process image"),
            anthropic("messages.3.content.0.tool_result.content.0.image.source.base64: Could not process image"),
            openai("You uploaded an unsupported image. Please make sure your image is valid.", "image_parse_error"),
            google(
                "Unable to process input image. Please retry or report in"
                " https://developers.generativeai.google/guide/troubleshooting"
            ),
            vllm("cannot identify image file <_io.BytesIO object at 0x7f2c8c1e0b30>"),
        ),
        provoked_by=("a cut picture", "a cut picture", "a picture of nothing"),
    ),
    Rule(
        name="a picture with another name",
        about="pictures",
        is_broken=any_content(
            pictures_in, lambda picture, _: not media.matches(picture.media_type, picture.data or b"")
        ),
        words=(
            anthropic(
                "messages.3.content.1.image.source.base64: The image was specified using the image/png media"
                " type, but the image appears to be a image/jpeg image"
            ),
            openai(
                "You uploaded an unsupported image. Please make sure your image has of one the following formats:"
                " ['png', 'jpeg', 'gif', 'webp'].",
                "invalid_image_format",
            ),
        ),
        provoked_by=("a picture with another name", "a picture of nothing"),
    ),
    Rule(
        name="a large picture",
        about="pictures",
        is_broken=any_content(pictures_in, lambda picture, limits: picture.size > limits.picture),
        words=(
            anthropic(
                "messages.3.content.0.image.source.base64: image exceeds 5 MB maximum: 6043512 bytes > 5242880 bytes"
            ),
            openai("Invalid image data: the image is too large.", "image_too_large"),
            *TOO_LARGE,
        ),
        provoked_by=("a large picture",),
    ),
    Rule(
        name="a wide picture",
        about="pictures",
        is_broken=any_content(
            pictures_in,
            lambda picture, limits: media.longest_side(picture.media_type, picture.data or b"") > limits.side,
        ),
        words=(
            anthropic(
                "messages.3.content.0.image.source.base64.data: At least one of the image dimensions exceed max"
                " allowed size: 8000 pixels"
            ),
            anthropic(
                "messages.3.content.0.image.source.base64.data: At least one of the image dimensions exceed max"
                " allowed size for many-image requests: 2000 pixels"
            ),
        ),
        provoked_by=("a wide picture",),
    ),
    Rule(
        name="too many pictures",
        about="pictures",
        is_broken=lambda asked, limits: len(asked.pictures) + len(asked.documents) > limits.pictures,
        words=(
            anthropic("messages: Too many images and documents: 101 + 0 > 100"),
            vllm("At most 2 image(s) may be provided in one request."),
            openai("Too many images in request. Maximum is 2.", "too_many_images"),
        ),
        provoked_by=("many pictures", "a whole picture", "a whole picture"),
    ),
    Rule(
        name="a rare kind of picture",
        about="pictures",
        is_broken=any_content(
            pictures_in, lambda picture, _: picture.media_type not in IMAGES - {"image/webp", "image/gif"}
        ),
        words=(
            anthropic(
                "messages.3.content.0.image.source.base64.media_type: Input should be 'image/jpeg' or 'image/png'"
            ),
            openai("Invalid MIME type. Only image types are supported.", "invalid_image_format"),
            plain("unsupported image type"),
        ),
        provoked_by=("a rare kind of picture",),
    ),
    Rule(
        name="any picture",
        about="pictures",
        is_broken=lambda asked, _: bool(asked.pictures),
        words=(
            openai("Invalid content type. image_url is only supported by certain models."),
            openai(
                "Failed to deserialize the JSON body into the target type: messages[3]: unknown variant"
                " `image_url`, expected `text` at line 1 column 460917"
            ),
            openai(
                "Failed to deserialize the JSON body into the target type: messages[3]: data did not match any"
                " variant of untagged enum ChatCompletionRequestContent at line 1 column 18231",
                status=422,
            ),
            openai("No endpoints found that support image input", status=400),
            vllm("m-1 is not a multimodal model"),
            anthropic("messages.3.content.0.tool_result.content.0: image input is not supported by this model"),
            plain("this model is missing data required for image input"),
        ),
        provoked_by=("a whole picture", "many pictures"),
    ),
    Rule(
        name="a picture in a result",
        about="pictures",
        apis=ANTHROPIC,
        is_broken=any_content(pictures_in, lambda picture, _: picture.in_result),
        words=(
            anthropic("Input should be a valid string (ref: a9065c14-5a11-4d60-a4ac-31554a0b8e35)"),
            anthropic("Invalid input"),
        ),
        provoked_by=("a whole picture",),
    ),
    Rule(
        name="content in parts",
        about="pictures",
        apis=OPENAI,
        is_broken=lambda asked, _: any(isinstance(message.get("content"), list) for message in asked.messages),
        words=(
            openai(
                "Failed to deserialize the JSON body into the target type: messages[2]: invalid type: sequence,"
                " expected a string at line 1 column 2901",
                status=422,
            ),
            fastapi("messages", "3", "content"),
            openai(
                "'messages.3' : for 'role:user' the following must be satisfied[('messages.3.content' : value"
                " must be a string)]"
            ),
        ),
        provoked_by=("a whole picture", "a document"),
    ),
    Rule(
        name="a person after a tool",
        about="pictures",
        apis=OPENAI,
        is_broken=lambda asked, _: any(
            one["role"] == "tool" and other["role"] == "user" for one, other in pairwise(asked.messages)
        ),
        words=(mistral("Unexpected role 'user' after role 'tool'", "3230"),),
        provoked_by=("a whole picture", "a document"),
    ),
)

DOCUMENTS: Final = (
    Rule(
        name="any document",
        about="documents",
        is_broken=lambda asked, _: bool(asked.documents),
        words=(
            openai(
                "Invalid value: 'file'. Supported values are: 'text', 'image_url', 'input_audio', 'refusal', and"
                " 'audio'.",
                "invalid_value",
            ),
            openai(
                "Failed to deserialize the JSON body into the target type: messages[3]: unknown variant `file`,"
                " expected `text` at line 1 column 2901"
            ),
            anthropic("messages.3.content.0: 'document' is not supported by this model"),
            anthropic("messages.3.content.0.tool_result.content.0.type: Input should be 'text' or 'image'"),
        ),
        provoked_by=("a document",),
    ),
    Rule(
        name="a broken document",
        about="documents",
        is_broken=any_content(documents_in, lambda document, _: not media.is_whole_pdf(document.data or b"")),
        words=(
            anthropic("The PDF specified was not valid."),
            anthropic("The PDF specified is password protected."),
            openai("The file could not be parsed. Please make sure it is a valid PDF.", "invalid_file"),
            google("The document has no pages."),
        ),
        provoked_by=("a broken document",),
    ),
    Rule(
        name="a document of many pages",
        about="documents",
        is_broken=any_content(documents_in, lambda document, limits: media.pages(document.data or b"") > limits.pages),
        words=(
            anthropic("A maximum of 100 PDF pages may be provided."),
            google("The document contains 12 pages which exceeds the supported page limit of 5."),
        ),
        provoked_by=("a document of many pages",),
    ),
)

TEXTS: Final = (
    Rule(
        name="a blank text",
        about="texts",
        apis=ANTHROPIC,
        is_broken=has_blank_text,
        words=(
            anthropic("messages: text content blocks must be non-empty"),
            anthropic("messages: text content blocks must contain non-whitespace text"),
        ),
        provoked_by=("blank text", "a blank result", "no result"),
    ),
    Rule(
        name="a blank part",
        about="texts",
        apis=OPENAI,
        is_broken=has_blank_part,
        words=(
            openai("Invalid 'messages[3].content[0].text': empty string."),
            anthropic("messages: text content blocks must be non-empty"),
        ),
        provoked_by=("blank text", "a blank result", "a whole picture"),
    ),
    Rule(
        name="an empty result",
        about="texts",
        is_broken=lambda asked, _: any(not result.content for result in asked.results),
        words=(
            fastapi("messages", "3", "content"),
            openai("Invalid value for 'content': expected a string, got null.", "invalid_type"),
            google("Unable to submit request because it must have a text parameter."),
        ),
        provoked_by=("no result", "a whole picture"),
    ),
    Rule(
        name="NUL",
        about="texts",
        is_broken=some_text(lambda text: "\0" in text),
        words=(
            openai("unsupported Unicode escape sequence: \\u0000 cannot be converted to text.", "22P05"),
            plain('invalid byte sequence for encoding "UTF8": 0x00'),
        ),
        provoked_by=("odd characters", "NUL as an argument"),
    ),
    Rule(
        name="control characters",
        about="texts",
        is_broken=some_text(has_control),
        words=(
            openai("Invalid control character at: line 1 column 2901 (char 2900)"),
            fastapi("messages", message="JSON decode error"),
        ),
        provoked_by=("odd characters", "NUL as an argument"),
    ),
    Rule(
        name="noncharacters",
        about="texts",
        is_broken=some_text(has_noncharacter),
        words=(google("Invalid value at 'contents[3].parts[0].text' (TYPE_STRING), invalid UTF-8"),),
        provoked_by=("odd characters",),
    ),
    Rule(
        name="invisible characters",
        about="texts",
        is_broken=some_text(has_invisible),
        words=(
            openai("Your request was blocked: hidden characters were found in the input."),
            plain("Request rejected by policy 1014"),
        ),
        provoked_by=("odd characters",),
    ),
    Rule(
        name="a long text",
        about="length",
        is_broken=lambda asked, limits: max(map(len, asked.texts), default=0) > limits.text,
        words=(
            openai(
                "Invalid 'messages[3].content': string too long. Expected a string with maximum length 10000, but"
                " got a string with length 24411 instead.",
                "string_above_max_length",
            ),
            fastapi("messages", "3", "content", message="String should have at most 10000 characters"),
            *TOO_LARGE,
        ),
        provoked_by=("a long text",),
    ),
    Rule(
        name="words that a filter knows",
        about="texts",
        is_broken=some_text(lambda text: "../../etc/passwd" in text),
        words=(plain("Request blocked by the web application firewall."), openai("Invalid prompt")),
        provoked_by=("words that a filter knows",),
    ),
)

LENGTH: Final = (
    Rule(
        name="a long conversation",
        about="length",
        is_broken=lambda asked, limits: asked.length > limits.conversation,
        words=(*TOO_LONG, *TOO_LARGE),
        provoked_by=("a long text", "long texts", "a long text"),
    ),
)

STATE: Final = (
    Rule(
        name="state that was lost",
        about="state",
        is_broken=lacks_state,
        words=(
            google(
                "Function call is missing a thought_signature in functionCall parts. This is required for tools"
                " to work correctly, and missing thought_signature may lead to degraded model performance."
            ),
            anthropic(
                "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`."
                " When `thinking` is enabled, a final `assistant` message must start with a thinking block."
            ),
            openai("The `reasoning_content` in the thinking mode must be passed back to the API."),
        ),
        provoked_by=("a plain call",),
    ),
    Rule(
        name="an unknown field",
        about="state",
        apis=OPENAI,
        is_broken=has_unknown_field,
        words=(
            openai(
                "'messages.1' : for 'role:assistant' the following must be satisfied[('messages.1' : property"
                " 'reasoning_content' is unsupported)]"
            ),
            fastapi("messages", "1", "reasoning_content", message="Extra inputs are not permitted"),
            mistral("Extra inputs are not permitted"),
        ),
        provoked_by=("reasoning",),
    ),
    Rule(
        name="two of one role",
        about="order",
        is_broken=repeats_roles,
        words=(
            anthropic(
                'messages: roles must alternate between "user" and "assistant", but found multiple "user" roles'
                " in a row"
            ),
            vllm("Conversation roles must alternate user/assistant/user/assistant/..."),
        ),
        provoked_by=("a whole picture", "a plain call"),
    ),
)

SOMETIMES: Final = (*NAMES, *IDS, *SCHEMAS, *PICTURES, *DOCUMENTS, *TEXTS, *LENGTH, *STATE)
"""The rules of which a conversation has a few."""
