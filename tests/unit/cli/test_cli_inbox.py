"""What the inbox says about an entry that goes away while a person looks at it."""

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from loom.cli.commands import inbox
from loom.client import LoomClient
from loom.domain.core.errors import UnreachableError
from loom.domain.core.messages import JsonObject
from loom.inbox import PendingAnswer, PendingCall

NOW = datetime.now(UTC)
CALL = PendingCall(run_id="r", tenant="", since=NOW, call_id="c1", tool="bash", digest="d1")
LATE = PendingCall(run_id="r", tenant="", since=NOW, call_id="c1", tool="bash", digest="d1", expires_at=NOW)
QUESTION = PendingAnswer(run_id="r", agent="a", tenant="", question="Which?", since=NOW)
GOES_ON: JsonObject = {"status": "running", "pending_approvals": [], "question": None}
WAITS: JsonObject = {
    "status": "waiting_for_approval",
    "pending_approvals": [{"call_id": "c1", "digest": "d1"}],
    "question": "Which?",
}
ANOTHER = {**WAITS, "pending_approvals": [{"call_id": "c1", "digest": "d2"}], "question": "Which other?"}
STALE = {**GOES_ON, "stale": True}


@pytest.mark.parametrize(
    ("waiting", "last", "why"),
    [
        (CALL, GOES_ON, "answered elsewhere"),
        (CALL, ANOTHER, "answered elsewhere"),
        (LATE, GOES_ON, "denied, because nobody decided in time"),
        (CALL, {**GOES_ON, "status": "aborted"}, "the run has ended: aborted"),
        (QUESTION, GOES_ON, "answered elsewhere"),
        (QUESTION, ANOTHER, "answered elsewhere"),
        (QUESTION, {**GOES_ON, "status": "failed"}, "the run has ended: failed"),
    ],
)
async def test_an_entry_stays_until_its_run_says_otherwise_and_then_says_why(
    monkeypatch: pytest.MonkeyPatch, waiting: PendingCall | PendingAnswer, last: JsonObject, why: str
) -> None:
    answers = iter([WAITS, UnreachableError("away"), STALE, WAITS, last])

    class Answering:
        async def status(self, _: str) -> JsonObject:
            answer: Any = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return cast("JsonObject", answer)

    monkeypatch.setattr(inbox, "CHECK_INTERVAL", 0.0)
    assert await inbox._gone(cast("LoomClient", Answering()), waiting) == why
    assert next(answers, None) is None


def test_an_entry_that_can_still_be_decided_is_not_called_late() -> None:
    call = PendingCall(
        run_id="r", tenant="", since=NOW, call_id="c1", tool="bash", expires_at=NOW + timedelta(seconds=1)
    )
    assert inbox._end(call, GOES_ON, NOW) == "answered elsewhere"
