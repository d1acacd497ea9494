"""The rules of the refusing provider: each refuses what it is about, and none refuses a sound request."""

import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import pytest

from loom.testing.model_replies import Api, Json
from tests.integration.activities.test_parts import minimal_pdf
from tests.refusing.asked import Asked
from tests.refusing.checks import Limits
from tests.refusing.conversations import KINDS, conversation
from tests.refusing.outside import CONTENTS
from tests.refusing.rules import ALWAYS, SOMETIMES, Rule
from tests.unit.domain.test_media import GIF, JPEG, png

RULES = {rule.name: rule for rule in (*ALWAYS, *SOMETIMES)}
SCHEMA: Json = {"type": "object", "properties": {"key": {"type": "string"}}}
ID = "abcdefgh1"


def request(
    *parts: tuple[str, bytes],
    api: Api = "openai",
    name: str = "observe",
    ids: Sequence[str] = (ID,),
    result: Any = "seen",
    schema: Json = SCHEMA,
    task: str = "look",
    said: str = "I look.",
) -> Json:
    """A conversation with one turn of calls. Parts come after or in the results, as each protocol has it."""
    if api == "openai":
        function = {"name": name, "arguments": "{}"}
        calls = [{"id": each, "type": "function", "function": function} for each in ids]
        messages = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": task},
            {"role": "assistant", "content": said, "tool_calls": calls},
            *({"role": "tool", "tool_call_id": each, "content": result} for each in ids),
            *([{"role": "user", "content": [_openai_part(*each) for each in parts]}] if parts else []),
        ]
        tool = {"type": "function", "function": {"name": "observe", "description": "", "parameters": schema}}
        return {"model": "m", "messages": messages, "tools": [tool]}
    inside = [{"type": "text", "text": result}, *(_anthropic_part(*each) for each in parts)] if parts else result
    uses = [{"type": "tool_use", "id": each, "name": name, "input": {}} for each in ids]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": task}]},
        {"role": "assistant", "content": [{"type": "text", "text": said}, *uses]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": each, "content": inside} for each in ids]},
    ]
    return {"model": "m", "messages": messages, "tools": [{"name": "observe", "input_schema": schema}]}


def _openai_part(media_type: str, data: bytes) -> Json:
    url = f"data:{media_type};base64,{b64encode(data).decode()}"
    if media_type == "application/pdf":
        return {"type": "file", "file": {"filename": "a.pdf", "file_data": url}}
    return {"type": "image_url", "image_url": {"url": url}}


def _anthropic_part(media_type: str, data: bytes) -> Json:
    kind = "document" if media_type == "application/pdf" else "image"
    source = {"type": "base64", "media_type": media_type, "data": b64encode(data).decode()}
    return {"type": kind, "source": source}


def refused(api: Api, body: Json, limits: Limits | None = None) -> set[str]:
    """The names of the rules that the request breaks."""
    asked = Asked(api, json.loads(json.dumps(body)))
    return {rule.name for rule in RULES.values() if api in rule.apis and rule.is_broken(asked, limits or Limits())}


PNG = ("image/png", png())
ABOUT_ANY_PICTURE = {"any picture", "a picture in a result", "content in parts", "a person after a tool"}
ABOUT_ANY_DOCUMENT = {"any document", "content in parts", "a person after a tool"}


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_no_rule_refuses_a_sound_conversation(api: Api) -> None:
    assert refused(api, request(api=api)) == set()
    assert refused(api, request(PNG, api=api)) <= ABOUT_ANY_PICTURE
    assert refused(api, request(("application/pdf", minimal_pdf("x")), api=api)) <= ABOUT_ANY_DOCUMENT


@pytest.mark.parametrize("api", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("rule", "given"),
    [
        ("a name with other characters", {"name": "observe<|channel|>commentary"}),
        ("an empty name", {"name": ""}),
        ("a long name", {"name": "o" * 65}),
        ("a name that no tool has", {"name": "nothing"}),
        ("an id with other characters", {"ids": ["call/1"]}),
        ("a long id", {"ids": ["c" * 41]}),
        ("an id that is not nine letters and digits", {"ids": ["call_0"]}),
        ("an id of two calls", {"ids": [ID, ID]}),
        ("an object without properties", {"schema": {"type": "object"}}),
        ("an object without properties", {"schema": {**SCHEMA, "properties": {"a": {"type": "object"}}}}),
        ("an array without items", {"schema": {**SCHEMA, "properties": {"a": {"type": "array"}}}}),
        ("a property's name", {"schema": {**SCHEMA, "properties": {"$a": {}}}}),
        ("a choice at the top of a schema", {"schema": {**SCHEMA, "anyOf": [{}]}}),
        ("a reference in a schema", {"schema": {**SCHEMA, "properties": {"a": {"$ref": "#/$defs/a"}}}}),
        ("a list of types", {"schema": {**SCHEMA, "properties": {"a": {"type": ["string", "null"]}}}}),
        ("a keyword in a schema", {"schema": {**SCHEMA, "patternProperties": {}}}),
        ("an empty result", {"result": ""}),
        ("half a character", {"result": "\ud83d"}),
        ("NUL", {"result": "\0"}),
        ("control characters", {"result": "\x1b"}),
        ("noncharacters", {"result": "\ufffe"}),
        ("invisible characters", {"said": "\u202e"}),
        ("words that a filter knows", {"result": "../../etc/passwd"}),
    ],
)
def test_a_rule_refuses_what_it_is_about(api: Api, rule: str, given: dict[str, Any]) -> None:
    assert rule in refused(api, request(api=api, **given))


@pytest.mark.parametrize("api", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("rule", "parts"),
    [
        ("a picture that is not base64", [("image/png", b"")]),
        ("a picture that is cut", [("image/png", png()[:-1])]),
        ("a picture that is cut", [("image/png", png()[:-12])]),
        ("a picture that is cut", [("image/png", png().replace(b"IDAT", b"IDAX"))]),
        ("a picture that is cut", [("image/jpeg", JPEG[:-2])]),
        ("a picture with another name", [("image/png", JPEG)]),
        ("a large picture", [("image/png", png() + bytes(60_000))]),
        ("a wide picture", [("image/png", png(2001, 1))]),
        ("too many pictures", [PNG, PNG, PNG]),
        ("a rare kind of picture", [("image/gif", GIF)]),
        ("any picture", [PNG]),
        ("any document", [("application/pdf", minimal_pdf("x"))]),
        ("a broken document", [("application/pdf", minimal_pdf("x")[:50])]),
        ("a document of many pages", [("application/pdf", minimal_pdf("x") + b"/Type /Page " * 5)]),
    ],
)
def test_a_rule_refuses_pictures_and_documents(api: Api, rule: str, parts: list[tuple[str, bytes]]) -> None:
    assert rule in refused(api, request(*parts, api=api))


def test_limits_refuse_what_is_longer() -> None:
    body = request(result="x" * 5_000)
    assert refused("openai", body, Limits(conversation=4_000, text=4_999)) == {"a long conversation", "a long text"}
    assert refused("openai", body, Limits(conversation=6_000, text=5_000)) == set()


def test_calls_and_results_belong_together() -> None:
    whole = request(ids=[ID, "abcdefgh2"])
    system, task, said, one, other = whole["messages"]
    assert refused("openai", whole) == set()
    assert "a call without a result" in refused("openai", {**whole, "messages": [system, task, said, one]})
    late = [system, task, said, one, task, other]
    assert {"a call without a result", "a result without a call"} <= refused("openai", {**whole, "messages": late})
    assert "a result without a call" in refused("openai", {**whole, "messages": [system, task, one]})
    assert "the assistant speaks last" in refused("openai", {**whole, "messages": [system, task, said]})
    assert "the assistant speaks first" in refused("openai", {**whole, "messages": [system, said, one, other, task]})
    assert refused("openai", {**whole, "messages": [system, task, task]}) == {"two of one role"}


def test_anthropic_s_results_follow_their_calls() -> None:
    whole = request(api="anthropic")
    task, said, results = whole["messages"]
    for messages in ([task, said, task], [task, said, task, results], [task, said]):
        assert "a call without a result" in refused("anthropic", {**whole, "messages": messages})
    assert "a result without a call" in refused("anthropic", {**whole, "messages": [task, results]})
    assert "a blank text" in refused("anthropic", request(api="anthropic", said=" "))
    marked = {"cache_control": {"type": "ephemeral"}}
    blocks = [{"type": "text", "text": "x", **marked}] * 5
    assert refused("anthropic", {**whole, "messages": [{"role": "user", "content": blocks}]}) == {
        "too many cache breakpoints"
    }


def test_state_comes_back_as_it_was_sent() -> None:
    limits, body = Limits(state={ID: {"sig"}}), request()
    assert refused("openai", body, limits) == {"state that was lost"}
    call = body["messages"][2]["tool_calls"][0]
    call["extra_content"] = {"google": {"thought_signature": "sig"}}
    assert refused("openai", body, limits) == set()
    body["messages"][2]["reasoning_content"] = "hm"
    assert refused("openai", body, limits) == {"an unknown field"}

    body = request(api="anthropic")
    assert refused("anthropic", body, limits) == {"state that was lost"}
    body["messages"][1]["content"].insert(0, {"type": "thinking", "thinking": "hm", "signature": "sig"})
    assert refused("anthropic", body, limits) == set()


@pytest.mark.parametrize("rule", SOMETIMES, ids=lambda rule: rule.name)
def test_a_conversation_provokes_its_rule_and_is_the_same_each_time(rule: Rule) -> None:
    assert set(rule.provoked_by) <= {*KINDS, "odd tools"}
    talks = [conversation(f"x/{number}", rule) for number in range(20)]
    assert talks == [conversation(f"x/{number}", rule) for number in range(20)]
    for talk in talks:
        assert rule.name in talk.rules
        kinds = {said.kind for said in talk.said}
        assert kinds & set(rule.provoked_by) or talk.agent == "odd"
        assert 2 <= len(talk.said) <= 9


def test_every_kind_of_content_is_provoked_by_a_rule_or_is_common() -> None:
    provoked = {kind for rule in RULES.values() for kind in rule.provoked_by}
    assert set(CONTENTS) - provoked == {"text"}
