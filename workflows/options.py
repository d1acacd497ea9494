"""Temporal's own lines have the workflow's id in another field. All lines of a run get the same one."""

from datetime import timedelta
from typing import Final

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType, ActivityConfig, LocalActivityConfig

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
