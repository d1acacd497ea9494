"""Tool calls: what a model may call, how a call was judged, and its result."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

from loom.domain.core.messages import JsonObject, Message, Part, ToolCall, short_digest
from loom.domain.core.tool_names import ASK_USER, MADE

STAGES: Final = ("discover", "validate", "authorize", "check_cancel", "execute", "format")
"""The six stages that every tool call passes through, in order."""

ErrorType: TypeAlias = Literal[
    "validation",
    "timeout",
    "permission",
    "not_found",
    "unavailable",
    "execution",
    "aborted",
    "lost",
    "unknown",
]
"""Why a tool call failed; `lost` means that its worker died and the outcome is unknown."""


EMPTY_OUTPUT: Final = "(the tool finished without output)"


class Effect(StrEnum):
    """What happens if a tool runs twice."""

    READ = "read"
    IDEMPOTENT = "idempotent"
    ONCE = "once"


class Verdict(StrEnum):
    """What the rules decide about a call."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Scope(StrEnum):
    """Where a tool has its effects, which decides how it is confined."""

    SANDBOXED = "sandboxed"
    """Files inside the workspace, and nothing else."""
    SYSTEM = "system"
    """Programs and the network, each under its own guard."""
    MCP = "mcp"
    """An external server."""
    CONTEXT = "context"
    """Loom's own data: artifacts, memory, the run's own lists."""


STRICTNESS: Final = (Verdict.ALLOW, Verdict.ASK, Verdict.DENY)
"""Verdicts from the most lenient to the strictest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolSpec:
    """A tool as the model and the run see it. It is pinned into the run at its start."""

    name: str
    description: str
    parameters: JsonObject
    """JSON Schema of the arguments."""
    effect: Effect = Effect.ONCE
    parallel: bool = False
    """Whether it may run in parallel with other calls: it only reads, or its name suggests that."""
    timeout: float = 120.0
    """Seconds for one call."""
    queue: str | None = None
    """Task queue to run on; None: the run's own."""
    scope: Scope = Scope.SANDBOXED
    declared: Verdict | None = None
    """The verdict if no rule names the tool, from its registration; None: the built-in default."""
    ephemeral: int = 0
    """Keep only the results of this many last uses in the context; 0: all of them."""
    source: str = ""
    """The Python code of a tool that an agent created; empty for registered tools."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedCall:
    """What the registry and the rules say about a tool call when it is made. Recorded, never recomputed."""

    verdict: Verdict = Verdict.ALLOW
    rule: str = ""
    """The rule that decided, as written; `built-in` for a default."""
    reason: str = ""
    error: str = ""
    """If not empty, the call cannot run (unknown tool, invalid arguments), and this says what to do."""
    error_type: ErrorType | None = None
    effect: Effect = Effect.ONCE
    parallel: bool = False
    timeout: float = 120.0
    queue: str | None = None
    digest: str = ""
    """Binds an approval to this tool with these arguments. Set for the verdict `ask`."""
    grants: tuple[str, ...] = ()
    """The allow rules that an approval for the rest of the run would add. Set for the verdict `ask`."""
    interceptor: str = ""
    """The interceptor that changed, answered or stopped the call."""
    arguments: JsonObject | None = None
    """The interceptor's arguments, which replace the model's. They were judged, and they run."""
    answer: str | None = None
    """The interceptor's result. Nothing runs."""
    stopped: str = ""
    """Why the interceptor stopped the call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResult:
    """The result of a tool call."""

    content: str
    status: Literal["success", "error", "warning"] = "success"
    error_type: ErrorType | None = None
    stage_ms: tuple[float, ...] = ()
    """Milliseconds spent in each of `STAGES` that the call reached."""
    resend: bool = False
    """The activity needs the arguments inline. Nothing has run."""
    parts: tuple[Part, ...] = ()
    """Images and files in addition to the text, for models that accept them."""
    artifact: str = ""
    """Id under which the whole output is stored, if `content` was cut."""
    length: int = 0
    """Characters of the whole output, if it was cut."""

    @property
    def metadata(self) -> JsonObject:
        """The result's metadata, as in the public contract."""
        return {
            "execution_time": round(sum(self.stage_ms) / 1000, 6),
            "stage_breakdown": dict(zip(STAGES, self.stage_ms, strict=False)),
            "error_type": self.error_type,
            "recoverable": self.error_type not in ("permission", "aborted"),
            "empty_response": self.content == EMPTY_OUTPUT,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """A person's decision on a pending call, or its expiry."""

    approved: bool
    scope: Literal["once", "run"] = "once"
    reason: str = ""
    by: str = ""
    at: datetime
    edited: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenCall:
    """A tool call of the current turn, from its judgement to its result."""

    call: ToolCall
    plan: PreparedCall
    asked_at: datetime | None = None
    decision: Decision | None = None
    result: ToolResult | None = None
    attempt: int = 1
    inline: bool = False
    """The next request contains the arguments, since its worker did not have them."""
    begun: bool = False
    """An earlier attempt may have started, and its outcome is unknown."""
    away: int = 0
    """Number of attempts that found the effect ledger unavailable."""
    lost: int = 0
    """Number of attempts whose worker died."""
    stale: int = 0
    """How often rules or arguments have changed since the call was judged. It has to be judged again."""

    @property
    def awaits_person(self) -> bool:
        """Whether the call still needs approval."""
        return self.result is None and self.plan.verdict is Verdict.ASK and self.decision is None and not self.stale


def artifact_id(turn: int, call_id: str) -> str:
    """The id, within its run, of a call's whole output."""
    return f"t{turn}-{call_id if len(call_id) <= 60 else short_digest(call_id)}"


def kept_artifact(call_id: str, tool: str, result: ToolResult) -> JsonObject:
    """A stored output, as a run's result names it."""
    return {"id": result.artifact, "call_id": call_id, "tool": tool, "characters": result.length}


def describe(call: ToolCall, width: int = 60) -> str:
    """One short line for people: the tool and its most informative argument."""
    if call.malformed is not None:
        return f"{call.name}: malformed arguments"
    value = next((v for v in call.arguments.values() if isinstance(v, str) and v.strip()), "")
    line = " ".join(value.split())
    line = line if len(line) <= width else line[: width - 1] + "…"
    return f"{call.name}: {line}" if line else call.name


def next_group(calls: Sequence[OpenCall], limit: int) -> tuple[OpenCall, ...]:
    """The calls to run next: leading parallel ones together (at most `limit`, at least one), any other one alone."""
    waiting = [call for call in calls if call.result is None]
    group: list[OpenCall] = []
    for call in waiting:
        if not call.plan.parallel or call.call.name == ASK_USER:
            break
        group.append(call)
    return tuple(group[: max(1, limit)]) if group else tuple(waiting[:1])


def tool_message(call: ToolCall, result: ToolResult, metadata: Mapping[str, Any] | None = None) -> Message:
    """The result as the model reads it."""
    text = Part(type="text", text=result.content)
    return Message(
        role="tool",
        content=(text, *result.parts) if result.parts else result.content,
        tool_call_id=call.id,
        name=call.name,
        is_error=result.status == "error",
        metadata={**(metadata or {}), **({"artifact": result.artifact} if result.artifact else {})},
    )


def failed(content: str, error_type: ErrorType) -> ToolResult:
    """A call that did not succeed. `content` tells the model what to try next."""
    return ToolResult(content=content, status="error", error_type=error_type)


def read_done(call: ToolCall) -> str:
    """The answer in a `done` call, under whichever common name the model used."""
    named = (call.arguments.get(key) for key in ("result", "output", "answer", "summary", "message"))
    return next((_text_of(value) for value in named if value and isinstance(value, str | dict | list)), "")


def _text_of(value: str | dict[str, Any] | list[Any]) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def made_tool(arguments: JsonObject) -> ToolSpec:
    """The tool that a call of `create_tool` describes. The call has been executed, so it is valid."""
    return ToolSpec(
        name=f"{MADE}{arguments['name']}",
        description=str(arguments["description"]),
        parameters=arguments["parameters"],
        scope=Scope.SYSTEM,
        declared=Verdict.ASK,
        source=str(arguments["code"]),
    )
