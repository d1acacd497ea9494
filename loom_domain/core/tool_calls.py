"""Tool calls: the tools that a model can call, the permission decision on each call, and its result."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

from loom.domain.core.messages import JsonObject, Message, Part, ToolCall, canonical, short_digest
from loom.domain.core.tokens import TOOL, text_tokens
from loom.domain.core.tool_input import Exchange, NeededInput
from loom.domain.core.tool_names import ASK_USER, MADE

STAGES: Final = ("discover", "validate", "authorize", "check_cancel", "execute", "format")
"""The six stages of every tool call, in order."""

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
"""The reason that a tool call failed. `lost` means that its worker died and the outcome is unknown."""


ENDED: Final = "ended"
"""Stands for an interpreter whose end the model knows of."""
LOST: Final = "lost"
"""Stands for the interpreter of a call that was lost with its worker."""

EMPTY_OUTPUT: Final = "(the tool finished without output)"


class Effect(StrEnum):
    """The consequence of running a tool twice."""

    READ = "read"
    IDEMPOTENT = "idempotent"
    ONCE = "once"


QUICK_READ: Final = "quick-read"
"""The effect of a prepared call that only reads, and so quickly that it runs in the activity that called the model.

Releases before 0.4 can't read this value, so their workers can't continue a run that has such a call. Otherwise, they
would schedule an activity for the call, and no worker of this release could replay the run.
"""
LOCAL_READ: Final = "local-read"
"""The same for a call that runs as a local activity, in runs of development versions of 0.4."""


class Verdict(StrEnum):
    """The permission rules' decision on a call."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Scope(StrEnum):
    """Where a tool's effects occur. This determines how the tool is confined."""

    SANDBOXED = "sandboxed"
    """Only files inside the workspace."""
    SYSTEM = "system"
    """Programs and the network, each with its own guard."""
    MCP = "mcp"
    """An external server."""
    CONTEXT = "context"
    """Loom's own data: artifacts, memory, the run's own lists."""


STRICTNESS: Final = (Verdict.ALLOW, Verdict.ASK, Verdict.DENY)
"""The verdicts, from most lenient to strictest."""


@dataclass(frozen=True, kw_only=True)
class ToolSpec:
    """The definition of a tool for the model and the run. It is pinned when the run starts."""

    name: str
    """The name by which models call the tool and rules name it."""
    description: str
    """What the model reads about the tool."""
    parameters: JsonObject
    """The JSON Schema for the arguments."""
    effect: Effect = Effect.ONCE
    """What happens if a call is repeated."""
    parallel: bool = False
    """Whether calls can run in parallel with other calls. They can if the tool is read-only or its name suggests that
    it is.
    """
    timeout: float = 120.0
    """The timeout for one call, in seconds."""
    queue: str | None = None
    """The task queue that the tool runs on. If None, the run's task queue is used."""
    scope: Scope = Scope.SANDBOXED
    """What a call may touch."""
    declared: Verdict | None = None
    """The verdict that the tool was registered with. It applies if no rule names the tool. If None, the built-in
    default applies.
    """
    ephemeral: int = 0
    """The number of most recent results to keep in the context. If 0, all results are kept."""

    @cached_property
    def tokens(self) -> int:
        """The estimated number of tokens in the description."""
        return TOOL + text_tokens(self.name + self.description + canonical(self.parameters))

    source: str = ""
    """The Python code of a tool that an agent created; empty for registered tools."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedCall:
    """The result of checking a new tool call against the registry and the rules. It is recorded, never recomputed."""

    verdict: Verdict = Verdict.ALLOW
    rule: str = ""
    """The text of the rule that decided, or `built-in` if a default verdict applied."""
    reason: str = ""
    error: str = ""
    """An explanation of how to fix the call if it cannot run, for example because the tool is unknown or the arguments
    are invalid. Empty if the call can run.
    """
    error_type: ErrorType | None = None
    effect: Effect | Literal["quick-read", "local-read"] = Effect.ONCE
    """The effect in the tool's spec, or `QUICK_READ` or `LOCAL_READ`."""
    parallel: bool = False
    timeout: float = 120.0
    queue: str | None = None
    digest: str = ""
    """A digest that binds an approval to this tool with these arguments. Set for the `ask` verdict."""
    grants: tuple[str, ...] = ()
    """The allow rules that an approval would add for the rest of the run. Set for the `ask` verdict."""
    interceptor: str = ""
    """The interceptor that changed, answered, or stopped the call."""
    arguments: JsonObject | None = None
    """The interceptor's arguments, which replace the model's. The rules check these, and the tool runs with them."""
    answer: str | None = None
    """The interceptor's result. If set, the tool does not run."""
    stopped: str = ""
    """The reason that the interceptor stopped the call."""
    sampling: Verdict = Verdict.DENY
    """Whether the tool's MCP server may call the run's model during the call."""
    found: tuple[str, ...] = ()
    """The tools that a search has found, best first."""
    result: "ToolResult | None" = None
    """The result of a quick read that has run in the activity that called the model."""

    @property
    def is_quick(self) -> bool:
        """Whether the first attempt at the call is part of the activity that called the model."""
        return self.effect == QUICK_READ

    @property
    def is_local(self) -> bool:
        """Whether the first attempt at the call may be a local activity."""
        return self.effect == LOCAL_READ

    @property
    def effect_of_tool(self) -> Effect:
        """The consequence of running the call twice."""
        return Effect.READ if self.is_quick or self.is_local else Effect(self.effect)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResult:
    """The result of a tool call."""

    content: str
    status: Literal["success", "error", "warning"] = "success"
    error_type: ErrorType | None = None
    stage_ms: tuple[float, ...] = ()
    """The milliseconds spent in each of the `STAGES` that the call reached."""
    resend: bool = False
    """Whether the worker needs the arguments inline. If so, the tool has not run."""
    parts: tuple[Part, ...] = ()
    """Images and files in addition to the text, for models that accept them."""
    artifact: str = ""
    """The id of the stored full output, if `content` was truncated."""
    length: int = 0
    """The number of characters in the full output, if it was truncated."""
    session: str = ""
    """The id of the interpreter that ran the call and stays for the run, or `ENDED` if the model knows of its end."""
    needs: NeededInput | None = None
    """Set if the call isn't finished, because its MCP server needs input first."""
    unproven: str = ""
    """The reason that the worker hasn't run the call, if it needs an approval that is proven."""

    @property
    def is_final(self) -> bool:
        """Whether the call has ended. If not, another attempt must follow."""
        return not self.resend and self.needs is None and not self.unproven

    @property
    def metadata(self) -> JsonObject:
        """The result's metadata in the public contract."""
        return {
            "execution_time": round(sum(self.stage_ms) / 1000, 6),
            "stage_breakdown": dict(zip(STAGES, self.stage_ms, strict=False)),
            "error_type": self.error_type,
            "recoverable": self.error_type not in ("permission", "aborted"),
            "empty_response": self.content == EMPTY_OUTPUT,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """A person's decision on a pending call, or the expiry of its approval request."""

    approved: bool
    scope: Literal["once", "run"] = "once"
    reason: str = ""
    by: str = ""
    at: datetime
    edited: bool = False
    proof: str = ""
    """The proof of the approval, which the worker verifies."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenCall:
    """A tool call in the current turn. The call is tracked from its permission decision until its result."""

    call: ToolCall
    plan: PreparedCall
    asked_at: datetime | None = None
    decision: Decision | None = None
    result: ToolResult | None = None
    attempt: int = 1
    inline: bool = False
    """Whether the next request must contain the arguments, because a worker did not have them."""
    begun: bool = False
    """Whether an earlier attempt may have started. If so, its outcome is unknown."""
    away: int = 0
    """The number of attempts during which the effect ledger was unavailable."""
    lost: int = 0
    """The number of attempts whose worker died."""
    failures: int = 0
    """The number of attempts whose tool failed and after which the call is tried again."""
    stale: int = 0
    """How often the rules or the call's arguments have changed since the call was checked. If this isn't 0, the call
    must be checked again.
    """
    exchange: Exchange | None = None
    """The input that the call's MCP server has asked for."""

    @property
    def is_local(self) -> bool:
        """Whether the next attempt is a local activity. Only a first attempt is one, and only if nobody has decided on
        the call.
        """
        return self.plan.is_local and self.attempt == 1 and self.decision is None

    @property
    def effect(self) -> Effect:
        """The consequence of making the next attempt twice. An attempt that asks for the result of a server's task can
        be repeated.
        """
        effect = self.plan.effect_of_tool
        goes_on = effect is Effect.ONCE and self.exchange is not None and bool(self.exchange.needed.task)
        return Effect.IDEMPOTENT if goes_on else effect

    @property
    def awaits_person(self) -> bool:
        """Whether the call still needs a person's approval, or an answer for its MCP server."""
        if self.exchange is not None:
            return self.result is None and self.exchange.open is not None and self.exchange.open.asks
        return self.result is None and self.plan.verdict is Verdict.ASK and self.decision is None and not self.stale


ARTIFACT_LENGTH: Final = 4_000_000
"""Maximum number of characters in one artifact. A longer output is stored in several."""
MOST_PARTS: Final = 10
"""Maximum number of artifacts for one output. The characters after them aren't stored."""
_PART: Final = "~part"


def artifact_id(turn: int, call_id: str) -> str:
    """Return the id of a call's full output. The id is unique within the run."""
    return f"t{turn}-{call_id if len(call_id) <= 60 else short_digest(call_id)}"


def artifact_parts(artifact: str, length: int) -> tuple[str, ...]:
    """Return the ids of the artifacts that hold an output of this length. The first one has the output's id."""
    number = min(MOST_PARTS, -(-length // ARTIFACT_LENGTH))
    return (artifact, *(f"{artifact}{_PART}{part}" for part in range(2, number + 1)))


def next_part(artifact: str) -> str:
    """Return the id of the artifact that continues this one."""
    first, _, number = artifact.rpartition(_PART)
    return f"{first}{_PART}{int(number) + 1}" if first and number.isdecimal() else f"{artifact}{_PART}2"


def stored_artifact(artifact: str, execution: str) -> str:
    """Return the name under which the run's artifact is stored. Another run with the same id has another execution."""
    return f"{artifact}@{execution}" if execution else artifact


def kept_artifact(call_id: str, tool: str, result: ToolResult) -> JsonObject:
    """Return the entry for a stored output in the run's result."""
    return {"id": result.artifact, "call_id": call_id, "tool": tool, "characters": result.length}


def describe(call: ToolCall, width: int = 60) -> str:
    """Describe the call in one short line for people: the tool and its most informative argument."""
    if call.malformed is not None:
        return f"{call.name}: malformed arguments"
    value = next((v for v in call.arguments.values() if isinstance(v, str) and v.strip()), "")
    line = " ".join(value.split())
    line = line if len(line) <= width else line[: width - 1] + "…"
    return f"{call.name}: {line}" if line else call.name


def next_group(calls: Sequence[OpenCall], limit: int) -> tuple[OpenCall, ...]:
    """Return the calls to run next. These are either up to `limit` parallel calls at the beginning, or a single call
    that can't run in parallel.
    """
    waiting = [call for call in calls if call.result is None]
    group: list[OpenCall] = []
    for call in waiting:
        if not call.plan.parallel or call.call.name == ASK_USER:
            break
        group.append(call)
    return tuple(group[: max(1, limit)]) if group else tuple(waiting[:1])


def tool_message(call: ToolCall, result: ToolResult, metadata: Mapping[str, Any] | None = None) -> Message:
    """Return the message that passes the result to the model."""
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
    """Return the result of a failed call. `content` tells the model what to try next."""
    return ToolResult(content=content, status="error", error_type=error_type)


def read_done(call: ToolCall) -> str:
    """Return the answer in a `done` call. Models use one of several common argument names."""
    named = (call.arguments.get(key) for key in ("result", "output", "answer", "summary", "message"))
    return next((_text_of(value) for value in named if value and isinstance(value, str | dict | list)), "")


def _text_of(value: str | dict[str, Any] | list[Any]) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def made_tool(arguments: JsonObject) -> ToolSpec:
    """Return the tool that a call to `create_tool` defines. The call has been executed, so its arguments are known to
    be valid.
    """
    return ToolSpec(
        name=f"{MADE}{arguments['name']}",
        description=str(arguments["description"]),
        parameters=arguments["parameters"],
        scope=Scope.SYSTEM,
        declared=Verdict.ASK,
        source=str(arguments["code"]),
    )
