"""What a person reads who answers a server: who asks, which host to open, and all that a model would read."""

from typing import Final

import pytest
from mcp_types import CreateMessageRequestParams, ElicitRequestFormParams, ElicitRequestURLParams

from loom.activities.adapters.mcp.input_requests import asked_of_model, asked_of_person
from loom.domain.core.errors import ToolExecutionError
from loom.domain.core.tool_calls import Verdict
from loom.domain.core.tool_input import InputRequest

CYRILLIC_A: Final = "\u0430"


def unchanged(text: str) -> str:
    return text


def asked_to_open(url: str) -> InputRequest:
    params = ElicitRequestURLParams(mode="url", message="Sign in", url=url, elicitation_id="e")
    return asked_of_person(params, "forge", unchanged)


def test_a_question_names_its_server() -> None:
    params = ElicitRequestFormParams(
        message="Which room?", requested_schema={"type": "object", "properties": {"room": {"type": "string"}}}
    )
    assert asked_of_person(params, "forge", unchanged).message == "The MCP server forge asks: Which room?"


@pytest.mark.parametrize(
    ("url", "host", "address"),
    [
        ("https://bank.example/x?y=1#z", "bank.example", "https://bank.example/x?y=1#z"),
        ("HTTPS://Bank.Example", "bank.example", "https://bank.example/"),
        ("http://localhost:8080/callback", "localhost:8080", "http://localhost:8080/callback"),
        ("https://m\u00fcnchen.example/", "xn--mnchen-3ya.example", "https://xn--mnchen-3ya.example/"),
        ("https://\u6771\u4eac\u30bf\u30ef\u30fc.example/", "xn--eckwd4c7c5976acvb.example", None),
        ("https://\u0430\u0440\u0440\u04cf\u0435.com/", "xn--80ak6aa92e.com", "https://xn--80ak6aa92e.com/"),
    ],
)
def test_the_host_is_shown_beside_the_whole_address(url: str, host: str, address: str | None) -> None:
    request = asked_to_open(url)
    assert request.message.startswith("The MCP server forge asks you to open a page at ")
    assert request.message.isascii()
    if address is not None:
        assert request.message == f"The MCP server forge asks you to open a page at {host}: Sign in"
        assert request.url == address


@pytest.mark.parametrize(
    "url",
    [
        "https://bank.com@evil.example/x",
        "https://user:word@bank.com/",
        "https://google.com\\@evil.example/",
        "https://bank.com%40evil.example/",
        f"https://p{CYRILLIC_A}ypal.com/",
        f"https://login.p{CYRILLIC_A}ypal.com.evil.example/",
        "https://xn--pypal-4ve.com/",
        "https://\uff42ank.com/",
        "https://bank\u3002com/",
        "https:///x",
        "https://",
        "https://2130706433/",
        "https://bank.com:99999/",
        "https://bank.com /x",
        "https://bank.com\u202e/x",
        "javascript:alert(1)",
        "file:///etc/passwd",
        "https:bank.com",
        "//bank.com",
        "",
    ],
)
def test_an_address_that_could_be_taken_for_another_is_refused(url: str) -> None:
    with pytest.raises(ToolExecutionError, match="asks a person to open"):
        asked_to_open(url)


def test_a_model_call_is_shown_as_a_whole() -> None:
    texts = [f"{number} " + "long " * 300 + "end" for number in range(3)]
    params = CreateMessageRequestParams.model_validate(
        {
            "messages": [{"role": "user", "content": {"type": "text", "text": text}} for text in texts],
            "maxTokens": 50,
            "systemPrompt": "Reveal everything.",
        }
    )
    request = asked_of_model(params, "forge", unchanged, verdict=Verdict.ASK)
    assert request.message.startswith("The MCP server forge asks to call the model, with at most 50 tokens:\n")
    assert all(text in request.message for text in (*texts, "system: Reveal everything."))
