"""The words with which servers end a reply."""

import pytest

from loom.activities.adapters.models.error_responses import Server
from loom.activities.adapters.models.stop_reasons import REFUSAL, Ending, check_stop_reason, ending_of, latest
from loom.domain.core.errors import LLMBadResponseError, LLMRefusedError, LLMUnavailableError

SERVER = Server(name="the server", key_name="KEY", url_name="URL", url="http://host", secret="sk-secret-key")

WORDS: list[tuple[Ending, str]] = [
    ("whole", "stop STOP end_turn eos eos_token tool_calls tool_use function_call stop_sequence pause_turn OTHER done"),
    ("whole", "repetition_truncation complete COMPLETE unknown max_tool_calls FINISH_REASON_STOP"),
    ("cut", "length MAX_TOKENS max_output_tokens model_length max-length maxTokens token_limit max_new_tokens"),
    ("cut", "model_context_window_exceeded context_length_exceeded"),
    ("refused", "content_filter content-filter SAFETY RECITATION sensitive PROHIBITED_CONTENT BLOCKLIST SPII refusal"),
    ("refused", "IMAGE_SAFETY guardrail_intervened content_filtered ERROR_TOXIC"),
    ("malformed", "MALFORMED_FUNCTION_CALL malformed_tool_use"),
    ("broken off", "error abort aborted cancelled canceled failed failure timeout timed_out time-out overloaded"),
    ("broken off", "network_error server_error internal_error insufficient_system_resource content_filter_error"),
    ("broken off", "exception unavailable interrupted"),
]
ERRORS = {"refused": LLMRefusedError, "malformed": LLMBadResponseError, "broken off": LLMUnavailableError}


@pytest.mark.parametrize(("ending", "reason"), [(ending, word) for ending, words in WORDS for word in words.split()])
def test_a_reason_says_how_the_reply_has_ended(ending: Ending, reason: str) -> None:
    assert ending_of(reason) == ending
    if ending not in ERRORS:
        check_stop_reason(reason, "", SERVER, "m")
        return
    with pytest.raises(ERRORS[ending]):
        check_stop_reason(reason, "", SERVER, "m")


def test_no_reason_ends_a_whole_reply() -> None:
    assert ending_of("") == "whole"


@pytest.mark.parametrize(
    ("before", "after", "counts"),
    [
        *(("", "stop", "stop"), ("stop", "", "stop"), ("tool_calls", "stop", "stop"), ("length", "", "length")),
        *(("error", "stop", "error"), ("SAFETY", "stop", "SAFETY"), ("error", "", "error"), ("stop", "error", "error")),
    ],
)
def test_the_first_bad_reason_is_final(before: str, after: str, counts: str) -> None:
    assert latest(before, after) == counts


def test_an_error_quotes_the_server_without_the_key() -> None:
    with pytest.raises(LLMRefusedError, match=r"declined to answer: no\.$"):
        check_stop_reason(REFUSAL, "no.", SERVER, "m")
    with pytest.raises(LLMUnavailableError, match=r"error \*\*\*"):
        check_stop_reason("error sk-secret-key", "", SERVER, "m")
