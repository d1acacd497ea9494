"""Temporal's own lines have the workflow's id in another field. All lines of a run get the same one."""

from datetime import timedelta
from typing import Final

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType, ActivityConfig, LocalActivityConfig

from loom.domain.core.messages import short_digest

HEARTBEAT: Final = timedelta(seconds=5)
"""A worker without a heartbeat for this long is dead; activities send one every 0.4 s."""

ONCE: Final = RetryPolicy(maximum_attempts=1)
"""One attempt: whether to try again is decided by `loom.domain.run.retry_policy` and recorded as the run's own step."""

IDEMPOTENT: Final = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    backoff_coefficient=2,
    maximum_interval=timedelta(seconds=30),
    maximum_attempts=20,
)
"""For steps without effects: Temporal retries them for about six minutes, unless they fail for good."""

MODEL_CALL_LIMIT: Final = timedelta(hours=1)
TOOL_GRACE: Final = timedelta(seconds=15)
"""Added to a tool's own timeout, to kill its processes and store its output."""

MAX_ID: Final = 100
"""Characters of an activity's id; a longer one is cut and gets a digest."""

MAX_UPDATES: Final = 1500
"""Accepted updates after which a run rotates; the server refuses more than 2,000 for one execution."""

CHILDREN_END: Final = timedelta(seconds=10)
"""How long an aborted run waits for its children to end and to report what they have used."""

PREPARE: Final = ActivityConfig(
    start_to_close_timeout=timedelta(seconds=60),
    heartbeat_timeout=HEARTBEAT,
    retry_policy=IDEMPOTENT,
)
PLAN: Final = PREPARE
HOOK_GRACE: Final = timedelta(seconds=5)
"""Added to a hook's own timeout, to report its outcome."""
MODEL: Final = ActivityConfig(
    start_to_close_timeout=MODEL_CALL_LIMIT,
    heartbeat_timeout=HEARTBEAT,
    retry_policy=ONCE,
    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)
COMPRESS: Final = MODEL
EVALUATE: Final = ActivityConfig(
    # The final answer waits for this, so it must not take for ever during an outage.
    schedule_to_close_timeout=timedelta(minutes=5),
    start_to_close_timeout=timedelta(minutes=2),
    heartbeat_timeout=HEARTBEAT,
    retry_policy=RetryPolicy(maximum_attempts=3),
)
PUBLISH: Final = LocalActivityConfig(
    start_to_close_timeout=timedelta(seconds=5), retry_policy=RetryPolicy(maximum_attempts=1)
)


def hook(patience: float) -> ActivityConfig:
    """Options for one hook; a hook that fails is not retried."""
    return ActivityConfig(
        start_to_close_timeout=timedelta(seconds=patience) + HOOK_GRACE,
        heartbeat_timeout=HEARTBEAT,
        retry_policy=IDEMPOTENT,
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    )


def tool(timeout: float, queue: str | None) -> ActivityConfig:
    """Options for one tool call that may take `timeout` seconds."""
    config = ActivityConfig(
        start_to_close_timeout=timedelta(seconds=timeout) + TOOL_GRACE,
        heartbeat_timeout=HEARTBEAT,
        retry_policy=ONCE,
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    )
    if queue is not None:
        config["task_queue"] = queue
    return config


def numbered(name: str, attempt: int) -> str:
    """An activity's id; the server takes 1,000 bytes, and ids of calls are whatever a provider makes of them."""
    short = name if len(name) <= MAX_ID else f"{name[:MAX_ID]}~{short_digest(name)}"
    return short if attempt == 1 else f"{short}-{attempt}"


def named(config: ActivityConfig, activity_id: str | None, summary: str) -> ActivityConfig:
    """The same options for one activity; a given id stays unique across continue-as-new."""
    one = config.copy()
    if activity_id is not None:
        one["activity_id"] = activity_id
    one["summary"] = summary
    return one
