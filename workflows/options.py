"""Activity options: timeouts, retry policies, and limits."""

from datetime import timedelta
from typing import Final

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType, ActivityConfig, LocalActivityConfig

HEARTBEAT: Final = timedelta(seconds=5)
"""A worker without a heartbeat for this time is considered dead. Activities send a heartbeat every 0.4 s."""

LEASED_HEARTBEAT: Final = timedelta(seconds=1.8)
"""The same for calls with a lease. If the worker is alive, the next attempt only waits for it, so a false alarm does no
harm.
"""

TASK_TIMEOUT: Final = timedelta(seconds=5)
"""How long a run waits for a worker that has taken its workflow task. Temporal's default is 10 s. On a busy machine, a
worker's first tasks take seconds.
"""

ONCE: Final = RetryPolicy(maximum_attempts=1)
"""A single attempt. `loom.domain.run.retry_policy` decides on retries, and the run records each decision."""

IDEMPOTENT: Final = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    backoff_coefficient=2,
    maximum_interval=timedelta(seconds=30),
    maximum_attempts=20,
)
"""The retry policy for steps without effects. Temporal retries retryable failures for about six minutes."""

MODEL_CALL_LIMIT: Final = timedelta(hours=1)
TOOL_GRACE: Final = timedelta(seconds=15)
"""Loom adds this time to a tool's own timeout, to kill its processes and store its output."""

CLONE_WAIT: Final = timedelta(hours=1)
"""A call in a clone has this time in addition. Other calls may be changing files, the clone may have to be made, and
the database may be away when the change is stored.
"""

MAX_UPDATES: Final = 1500
"""A run continues as new after this number of accepted updates. The server limits an execution to 2,000."""

EVENTS_OF_REQUEST: Final = 5
"""About the number of events that a signal or an update adds to the history, with its workflow task and its notice."""

LONG_ACTION: Final = timedelta(minutes=10)
"""After an action or a wait of this length, a run continues as new if its worker's version is no longer current."""

LONG_WAIT: Final = timedelta(minutes=1)
"""A run that waits at least this long for a person or a time may leave its worker's memory."""

SHORTEST_WAIT: Final = timedelta(milliseconds=1)
"""The length of a timer that only gives a workflow task a command."""

CHAT_IDLE: Final = timedelta(minutes=1)
"""A chat that has waited for a message for this time continues as new, so that its next message is answered without a
replay of everything before.
"""

SHORTEST_TIMER: Final = 0.001
"""The shortest timer in seconds. The server takes none of no length."""

CHILDREN_END: Final = timedelta(seconds=10)
"""How long an aborted run waits for its children to end and report their usage."""

CHILD: Final = ActivityConfig(
    # Each attempt looks once at a child that may run for days.
    start_to_close_timeout=timedelta(seconds=30),
    retry_policy=RetryPolicy(
        initial_interval=timedelta(seconds=1), backoff_coefficient=1.5, maximum_interval=timedelta(seconds=5)
    ),
)
PREPARE: Final = ActivityConfig(
    start_to_close_timeout=timedelta(seconds=60),
    heartbeat_timeout=HEARTBEAT,
    retry_policy=IDEMPOTENT,
)
PLAN: Final = PREPARE
PLAN_IN_CLONE: Final = ActivityConfig(
    # The clone may have to be made first, from a repository that is away.
    start_to_close_timeout=CLONE_WAIT,
    heartbeat_timeout=HEARTBEAT,
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=1)),
)
STORE_PARTS: Final = ActivityConfig(
    start_to_close_timeout=timedelta(minutes=5),
    heartbeat_timeout=HEARTBEAT,
    retry_policy=IDEMPOTENT,
    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)
FILES_LIMIT: Final = timedelta(minutes=30)
"""How long a request for a run's files may take. A clone may have to be made first, and calls may hold it."""
READ_FILES: Final = ActivityConfig(
    start_to_close_timeout=FILES_LIMIT,
    heartbeat_timeout=HEARTBEAT,
    retry_policy=IDEMPOTENT,
    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)
WRITE_FILE: Final[ActivityConfig] = {**READ_FILES, "retry_policy": ONCE}
"""A second attempt could undo what the agent has done with the file since the first one wrote it."""
CLONE: Final = ActivityConfig(
    # A large repository takes this long, and so does a server that is away for some minutes.
    start_to_close_timeout=timedelta(minutes=30),
    heartbeat_timeout=HEARTBEAT,
    retry_policy=IDEMPOTENT,
    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)
RETURN_CHANGE: Final = ActivityConfig(
    # The run's end waits for this, through an outage as long as one of its model's provider. A person can end the wait.
    schedule_to_close_timeout=timedelta(days=1),
    start_to_close_timeout=CLONE_WAIT,
    heartbeat_timeout=HEARTBEAT,
    retry_policy=RetryPolicy(
        initial_interval=timedelta(seconds=1), backoff_coefficient=2, maximum_interval=timedelta(minutes=1)
    ),
    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)
ADMISSION: Final = ActivityConfig(
    # An attempt ends when another run wakes this one. A wake-up can be lost, so the next attempt looks again.
    start_to_close_timeout=timedelta(minutes=10),
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30)),
)
LEAVE: Final = ActivityConfig(
    schedule_to_close_timeout=timedelta(seconds=20),
    start_to_close_timeout=timedelta(seconds=10),
    retry_policy=IDEMPOTENT,
)
HOOK_GRACE: Final = timedelta(seconds=5)
"""Loom adds this time to a hook's own timeout, to report its outcome."""
MODEL: Final = ActivityConfig(
    start_to_close_timeout=MODEL_CALL_LIMIT,
    heartbeat_timeout=HEARTBEAT,
    retry_policy=ONCE,
    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)
COMPRESS: Final = MODEL
OWN_QUEUE: Final = timedelta(seconds=10)
"""How long a worker may take to accept work that only it can do. It may be busy."""
SAMPLE: Final = ActivityConfig(
    start_to_close_timeout=timedelta(minutes=10),
    heartbeat_timeout=HEARTBEAT,
    retry_policy=RetryPolicy(maximum_attempts=5),
    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)
EVALUATE: Final = ActivityConfig(
    # The final answer waits for the evaluation, which therefore must not block indefinitely during an outage.
    schedule_to_close_timeout=timedelta(minutes=5),
    start_to_close_timeout=timedelta(minutes=2),
    heartbeat_timeout=HEARTBEAT,
    retry_policy=RetryPolicy(maximum_attempts=3),
)
LOCAL_READ: Final = LocalActivityConfig(
    # The workflow task waits, and no signal reaches the run. The attempt ends by itself (`run_tool.QUICK_TIMEOUT`), so
    # this is only for a worker that stands still. An activity then makes the next attempt.
    schedule_to_close_timeout=timedelta(seconds=1),
    retry_policy=ONCE,
    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)
PUBLISH: Final = ActivityConfig(
    # The run waits for this before it goes on.
    schedule_to_close_timeout=timedelta(seconds=5),
    retry_policy=ONCE,
)
PUBLISH_LOCALLY: Final = LocalActivityConfig(
    start_to_close_timeout=timedelta(seconds=5), retry_policy=RetryPolicy(maximum_attempts=1)
)
NOTIFY: Final = ActivityConfig(
    # The run tries again later.
    schedule_to_close_timeout=timedelta(seconds=5),
    retry_policy=ONCE,
)
NOTIFY_LOCALLY: Final = LocalActivityConfig(
    # Before 0.4.0. The workflow task waits, and nothing reaches the run.
    schedule_to_close_timeout=timedelta(seconds=5),
    retry_policy=ONCE,
)
NOTIFY_AGAIN: Final = timedelta(minutes=1)
"""The time between two tries to notify people of what waits for them, if the server doesn't take the first."""
END_AGAIN: Final = timedelta(seconds=2)
"""The same for the end of a run, which waits for this."""
END_TRIES: Final = 4
"""After this number of tries, nobody is notified of the end of a run."""
