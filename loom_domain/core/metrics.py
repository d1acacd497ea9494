"""Every metric of Loom: its name, its kind, its labels and what it counts. `docs/metrics.md` lists them.

Durations are in seconds, and money is in millionths of a US dollar, so that counters add up exactly. No label holds the
id of a run, a session, a user or a tenant. `machine.measurements` decides what a run's events count.
"""

from dataclasses import dataclass
from typing import Final, Literal

from loom.domain.core.tool_names import MADE

_QUICK: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""For the duration of tools and permits."""
_MODEL: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""For the duration of model calls and turns."""
_LONG: Final = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 24 * 3600.0, 7 * 24 * 3600.0)
"""For the duration of runs and of waits for a person."""
_TOKENS: Final = (1e3, 2e3, 4e3, 8e3, 16e3, 32e3, 64e3, 100e3, 150e3, 200e3, 400e3, 1e6)
_RATIOS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)

UNKNOWN: Final = "unknown"
"""The label of a tool that the run doesn't have. A model can invent any number of names."""
MADE_BY_AGENT: Final = "made"
"""The label of all tools that agents create."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One metric."""

    name: str
    kind: Literal["counter", "histogram", "gauge"]
    labels: tuple[str, ...] = ()
    help: str
    buckets: tuple[float, ...] = ()
    """The upper bounds of a histogram's buckets."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One value for a metric: the amount that a counter grows by, or the value of a histogram or a gauge."""

    metric: Metric
    labels: tuple[str, ...]
    """One value for each label of the metric, in order."""
    value: float = 1


def _counter(name: str, *labels: str, says: str) -> Metric:
    return Metric(name=name, kind="counter", labels=labels, help=says)


def _histogram(name: str, *labels: str, says: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(name=name, kind="histogram", labels=labels, help=says, buckets=buckets)


def _gauge(name: str, *labels: str, says: str) -> Metric:
    return Metric(name=name, kind="gauge", labels=labels, help=says)


# Runs and their turns.
RUNS_STARTED: Final = _counter("loom_runs_started_total", "agent", says="Runs whose first turn began.")
RUNS: Final = _counter("loom_runs_total", "agent", "status", says="Runs that ended.")
RUN_DURATION: Final = _histogram(
    "loom_run_duration_seconds", "agent", "status", says="From a run's start to its end.", buckets=_LONG
)
FIRST_TURN: Final = _histogram(
    "loom_time_to_first_turn_seconds", "agent", says="From a run's start to its first turn.", buckets=_MODEL
)
ITERATIONS: Final = _counter(
    "loom_iterations_total", "agent", says="Turns. A run's last answer at a limit is not a turn."
)
ITERATION_DURATION: Final = _histogram(
    "loom_iteration_duration_seconds",
    "agent",
    says="From one turn's start to the next, with all waits.",
    buckets=_MODEL,
)

# Model calls. `provider` and `model` are the two parts of a model's name.
_CALLED: Final = ("provider", "model")
LLM_CALLS: Final = _counter(
    "loom_llm_calls_total", *_CALLED, "outcome", says="Model calls: `answered`, or the type of the error."
)
LLM_DURATION: Final = _histogram(
    "loom_llm_call_duration_seconds",
    *_CALLED,
    "outcome",
    says="One attempt, including its wait for a permit.",
    buckets=_MODEL,
)
FIRST_TOKEN: Final = _histogram(
    "loom_llm_time_to_first_token_seconds", *_CALLED, says="From an attempt's start to its first text.", buckets=_MODEL
)
TOKENS: Final = _counter(
    "loom_tokens_total",
    *_CALLED,
    "kind",
    says="Tokens: `input` (all), `output`, `cached` and `cache_write` (of the input).",
)
COST: Final = _counter(
    "loom_cost_micro_usd_total", *_CALLED, says="Millionths of a US dollar, where the price is known."
)
FALLBACKS: Final = _counter("loom_fallbacks_total", *_CALLED, says="Switches to this model after another one failed.")
PERMIT_WAIT: Final = _histogram(
    "loom_permit_wait_seconds",
    *_CALLED,
    "reason",
    says="The delay of a refused permit: the breaker is `open`, the provider is `paused`, or a `limit` is reached.",
    buckets=_QUICK,
)
BREAKER_OPEN: Final = _gauge(
    "loom_breaker_open", *_CALLED, says="1 while the circuit breaker of the model is open or half-open, else 0."
)

# Tool calls.
TOOL_CALLS: Final = _counter(
    "loom_tool_calls_total",
    "tool_name",
    "status",
    says="Tool calls: `success`, `warning` and `error` ran; `answered`, `refused`, `denied` and `aborted` didn't.",
)
TOOL_DURATION: Final = _histogram(
    "loom_tool_execution_duration_seconds", "tool_name", "status", says="One tool call in its worker.", buckets=_QUICK
)

# Attempts beyond the first.
RETRIES: Final = _counter(
    "loom_retries_total", "kind", says="Attempts at a `model`, `compression` or `tool` call that follow a failed one."
)
RECOVERIES: Final = _counter("loom_recoveries_total", "kind", says="Attempts that were lost with their worker.")

# The context.
CONTEXT_TOKENS: Final = _histogram(
    "loom_context_tokens", "agent", says="Tokens of a context and its answer.", buckets=_TOKENS
)
COMPRESSIONS: Final = _counter(
    "loom_compressions_total", "trigger", "outcome", says="Compressions: `compressed` or `failed`."
)
COMPRESSION_RATIO: Final = _histogram(
    "loom_compression_ratio",
    "trigger",
    says="Tokens after a compression, as a fraction of those before it.",
    buckets=_RATIOS,
)

# People.
ASKS: Final = _counter("loom_asks_total", "tool_name", says="Calls that waited for a person.")
ASK_WAIT: Final = _histogram(
    "loom_ask_wait_seconds",
    "decision",
    says="How long a call waited until it was `approved`, `denied`, `expired` or, without a decision, `withdrawn`.",
    buckets=_LONG,
)
PARKED: Final = _counter(
    "loom_parked_total", "waiting_on", says="Runs that were parked on their `provider` or `operator`."
)
PARKED_TIME: Final = _histogram("loom_parked_seconds", "waiting_on", says="How long a run was parked.", buckets=_LONG)
REOPENED: Final = _counter("loom_runs_reopened_total", "agent", says="Runs that a person reopened.")

# What a worker sees of its task queue and its stores, every 15 seconds.
ACTIVE_AGENTS: Final = _gauge("loom_active_agents", says="Open runs that don't wait, on all workers of the task queue.")
WAITING_RUNS: Final = _gauge(
    "loom_waiting_runs",
    "waiting_on",
    says="Open runs that wait for `approval`, `input`, `resume`, `tenant`, `provider` or `operator`.",
)
OPEN_ASKS: Final = _gauge("loom_open_asks", says="Calls that wait for a person now.")
OLDEST_ASK: Final = _gauge(
    "loom_oldest_ask_age_seconds", says="The age of the oldest call that waits for a person; 0 if none does."
)
MEMORY_LAG: Final = _gauge("loom_memory_lag_tasks", says="Tasks on the bus that memory has not stored yet.")
TRACE_LAG: Final = _gauge("loom_trace_lag_tasks", says="Tasks on the bus whose spans are not exported yet.")
MEMORY_BYTES: Final = _gauge("loom_worker_memory_bytes", says="The worker's resident memory.")
ALIVE: Final = _gauge(
    "loom_worker_alive_timestamp_seconds",
    says="When the worker last showed that it is serving, by its own clock. `loom health` reads it.",
)
STREAM_DROPS: Final = _counter("loom_stream_dropped_events_total", says="Live events that could not be written.")
SPANS_DROPPED: Final = _counter(
    "loom_spans_dropped_total", says="Spans that the receiver rejected, or that exceeded a worker's limit."
)

ALL: Final[tuple[Metric, ...]] = (
    RUNS_STARTED,
    RUNS,
    RUN_DURATION,
    FIRST_TURN,
    ITERATIONS,
    ITERATION_DURATION,
    LLM_CALLS,
    LLM_DURATION,
    FIRST_TOKEN,
    TOKENS,
    COST,
    FALLBACKS,
    PERMIT_WAIT,
    BREAKER_OPEN,
    TOOL_CALLS,
    TOOL_DURATION,
    RETRIES,
    RECOVERIES,
    CONTEXT_TOKENS,
    COMPRESSIONS,
    COMPRESSION_RATIO,
    ASKS,
    ASK_WAIT,
    PARKED,
    PARKED_TIME,
    REOPENED,
    ACTIVE_AGENTS,
    WAITING_RUNS,
    OPEN_ASKS,
    OLDEST_ASK,
    MEMORY_LAG,
    TRACE_LAG,
    MEMORY_BYTES,
    ALIVE,
    STREAM_DROPS,
    SPANS_DROPPED,
)


def model_labels(model: str) -> tuple[str, str]:
    """Return the labels for `provider:name`."""
    provider, _, name = model.partition(":")
    return provider, name or provider


def tool_label(tool: str, known: frozenset[str]) -> str:
    """Return the label for a tool. Only names that the run's spec has are labels."""
    if tool.startswith(MADE):
        return MADE_BY_AGENT
    return tool if tool in known else UNKNOWN
