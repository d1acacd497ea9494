"""Loom's errors across the activity boundary and back."""

from datetime import timedelta

import pytest
from temporalio.api.failure.v1 import Failure as WireFailure
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    RetryState,
    ServerError,
    TimeoutError,  # noqa: A004
    TimeoutType,
)

from loom.activities.failures import failure_of, to_application_error
from loom.domain.core.errors import (
    LLMContextLengthError,
    LLMRateLimitError,
    LLMUnavailableError,
    LoomError,
    NoPermitError,
)
from loom.domain.run.retry_policy import Again, Failure, GiveUp, Tries, after_failure


def caught(cause: BaseException) -> ActivityError:
    """The exception that a workflow catches around an activity that failed in this way."""
    error = ActivityError(
        "Activity task failed",
        scheduled_event_id=5,
        started_event_id=6,
        identity="worker",
        activity_type="call_model",
        activity_id="1",
        retry_state=RetryState.NON_RETRYABLE_FAILURE,
    )
    error.__cause__ = cause
    return error


def timed_out(kind: TimeoutType) -> ActivityError:
    return caught(TimeoutError("activity timeout", type=kind, last_heartbeat_details=[]))


@pytest.mark.parametrize(
    ("error", "context"),
    [
        (LLMRateLimitError("slow", retry_after=7.5, model="m"), {"retry_after": 7.5, "model": "m"}),
        (LLMRateLimitError("slow", retry_after=None), {}),
        (LLMContextLengthError("long", tokens=9, limit=8), {"tokens": 9, "limit": 8}),
        (LLMUnavailableError("away"), {}),
    ],
)
async def test_an_error_keeps_its_type_message_and_facts_on_the_wire(
    error: LoomError, context: dict[str, object]
) -> None:
    sent = to_application_error(error, str)
    assert sent.non_retryable
    wire = WireFailure()
    await pydantic_data_converter.encode_failure(sent, wire)
    received = await pydantic_data_converter.decode_failure(wire)
    assert failure_of(caught(received)) == Failure(
        kind="provider", type=type(error).__name__, message=error.message, context=context
    )


def test_no_secret_that_a_provider_repeats_crosses_the_border() -> None:
    error = LLMUnavailableError("wrong key: hunter2")
    assert to_application_error(error, lambda text: text.replace("hunter2", "…")).message == "wrong key: …"


def test_the_waiting_time_that_a_provider_asked_for_is_kept() -> None:
    failure = failure_of(caught(to_application_error(LLMRateLimitError("slow", retry_after=7.5), str)))
    assert after_failure(Tries(), failure) == Again(delay=7.5)


def test_a_call_without_a_permit_comes_back_in_time_wherever_it_is_retried() -> None:
    error = to_application_error(NoPermitError("wait", retry_after=12.5, model="openai:m"), str)
    assert (error.non_retryable, error.next_retry_delay) == (False, timedelta(seconds=12.5))
    failure = failure_of(caught(error))
    assert failure.context == {"retry_after": 12.5, "model": "openai:m", "has_run": False}
    assert after_failure(Tries(failed=2), failure) == Again(delay=12.5)


@pytest.mark.parametrize(
    ("error", "kind", "name"),
    [
        (timed_out(TimeoutType.HEARTBEAT), "lost", "HeartbeatTimeout"),
        (caught(ApplicationError("", type="CancelledError")), "lost", "CancelledError"),
        (caught(ApplicationError("Worker is shutting down", type="WorkerShutdown")), "lost", "WorkerShutdown"),
        (caught(ApplicationError("reset", type="ActivityReset")), "lost", "ActivityReset"),
        (caught(ServerError("gone")), "lost", "ServerError"),
        (timed_out(TimeoutType.SCHEDULE_TO_START), "infrastructure", "NoWorker"),
        (caught(ApplicationError("away", type="StorageUnavailable")), "infrastructure", "StorageUnavailable"),
        (caught(ApplicationError("no such activity", type="NotFoundError")), "infrastructure", "NotFoundError"),
        (caught(ApplicationError("Failed decoding arguments")), "infrastructure", "ApplicationError"),
        (caught(ApplicationError("wait", type="NoPermitError")), "infrastructure", "NoPermitError"),
        (timed_out(TimeoutType.START_TO_CLOSE), "provider", "Timeout"),
        (timed_out(TimeoutType.SCHEDULE_TO_CLOSE), "provider", "Timeout"),
        (caught(ApplicationError("a bug", type="KeyError")), "provider", "KeyError"),
        (caught(CancelledError()), "provider", "ExecutionAbortedError"),
        (ApplicationError("bare", type="LLMRefusedError"), "provider", "LLMRefusedError"),
        (LLMUnavailableError("never crossed the border"), "provider", "LLMUnavailableError"),
        (ValueError("odd"), "provider", "ValueError"),
    ],
)
def test_every_failure_has_a_kind(error: BaseException, kind: str, name: str) -> None:
    failure = failure_of(error)
    assert (failure.kind, failure.type) == (kind, name)


@pytest.mark.parametrize(
    ("error", "has_run"),
    [
        (caught(ApplicationError("away", type="StorageUnavailable")), True),
        (caught(ApplicationError("Failed decoding arguments")), False),
        (timed_out(TimeoutType.SCHEDULE_TO_START), False),
    ],
)
def test_trouble_of_loom_s_own_tells_whether_the_work_was_done(error: BaseException, has_run: bool) -> None:
    assert failure_of(error).context == {"has_run": has_run}


def test_a_bug_in_an_activity_is_not_tried_again() -> None:
    assert after_failure(Tries(), failure_of(caught(ApplicationError("a bug", type="KeyError")))) == GiveUp()
