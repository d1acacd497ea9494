"""Input that an MCP server asks for while it runs a tool: an answer from a person, or an answer from the run's model.

A call that needs input ends its attempt with a `NeededInput` instead of a result. The run collects the answers, and
then continues the call with another attempt. `docs/mcp.md` explains why a call that must run once isn't repeated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

from loom.domain.core.messages import JsonObject, canonical, short_digest

InputKind: TypeAlias = Literal["form", "url", "sampling"]
"""`form`: a person fills in fields. `url`: a person opens an address. `sampling`: the run's model answers."""
MOST_ROUNDS: Final = 20
"""Maximum number of times that one call may ask for input."""

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class InputRequest:
    """A server's request for input."""

    key: str
    """Identifies the request within its call. A server that repeats a question uses the same key."""
    kind: InputKind
    message: str
    """The question for a person. For sampling, it describes the model call."""
    schema: JsonObject = field(default_factory=dict)
    """The JSON Schema of a form's fields, with properties of simple types."""
    url: str = ""
    """The address that a person must open."""
    sampling: JsonObject = field(default_factory=dict)
    """The model call: `messages`, `system`, `max_tokens` and `temperature`."""
    asks: bool = True
    """Whether a person must agree. False for a model call that a rule allows or that a person has approved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InputAnswer:
    """The answer to a request for input."""

    key: str
    kind: InputKind
    action: Literal["accept", "decline", "cancel"]
    """`decline`: a person refused. `cancel`: nobody answered in time."""
    content: JsonObject = field(default_factory=dict)
    """The fields of a form, or the model's answer: `text`, `model` and `stop`."""
    reason: str = ""
    """Why there is no answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NeededInput:
    """What a server needs before it can continue a call."""

    requests: tuple[InputRequest, ...]
    """Empty if the server only has told the ID of its task."""
    state: str = ""
    """The server's own state of the call, which it receives again with the answers. Servers of the protocol 2026-07-28
    keep nothing else, so any worker can continue the call.
    """
    queue: str = ""
    """The task queue of the worker that keeps the call open. Servers of older protocols wait for the answers in the
    call itself. Empty if the server keeps nothing.
    """
    task: str = ""
    """The ID of the task as which the server runs the call. The call goes on by asking for the task's result."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """The requests for input of one call, and their answers so far."""

    needed: NeededInput
    round: int = 1
    """The number of times that the call has asked for input."""
    answers: tuple[InputAnswer, ...] = ()
    """The answers to the current requests, in order."""
    earlier: tuple[InputAnswer, ...] = ()
    """The answers of earlier rounds. They are needed if the call is made again from its beginning."""

    @property
    def open(self) -> InputRequest | None:
        """The request that has no answer yet."""
        return next(iter(self.needed.requests[len(self.answers) :]), None)

    def answered(self, answer: InputAnswer) -> "Exchange":
        """Return the exchange with the open request answered."""
        return replace(self, answers=(*self.answers, answer))

    def approved(self) -> "Exchange":
        """Return the exchange with a person's agreement to the open request."""
        done = len(self.answers)
        requests = (replace(each, asks=False) if n == done else each for n, each in enumerate(self.needed.requests))
        return replace(self, needed=replace(self.needed, requests=tuple(requests)))

    def asked(self, needed: NeededInput) -> "Exchange":
        """Return the exchange after the call has asked again."""
        return Exchange(needed=needed, round=self.round + 1, earlier=(*self.earlier, *self.answers))

    def restarted(self) -> "Exchange":
        """Return the exchange of a call whose worker was lost. Any worker makes the call again from its beginning, and
        answers repeated questions from the record.
        """
        return replace(self, needed=replace(self.needed, queue=""))

    def digest(self, call: str) -> str:
        """Return a digest that binds an answer to this question of this call."""
        request = self.open
        asked = {} if request is None else {"key": request.key, "message": request.message, "schema": request.schema}
        return short_digest(canonical({"call": call, "round": self.round, "done": len(self.answers), **asked}))


def wrong_answer(schema: JsonObject, content: JsonObject) -> str | None:
    """Return the reason that this content doesn't match a form's schema, or None. MCP limits these schemas to an object
    with properties of simple types.
    """
    properties: Mapping[str, Any] = schema.get("properties") or {}
    described = ", ".join(properties) or "none"
    if unknown := [name for name in content if name not in properties]:
        return f"the form has no field {unknown[0]!r}; its fields: {described}"
    if missing := [name for name in schema.get("required") or () if name not in content]:
        return f"the form needs {', '.join(missing)}: give them as `arguments`; its fields: {described}"
    wrong = (_wrong_value(name, properties[name], value) for name, value in content.items())
    return next((why for why in wrong if why), None)


def _wrong_value(name: str, form: Any, value: Any) -> str | None:
    form = form if isinstance(form, Mapping) else {}
    kind = form.get("type")
    expected = _TYPES.get(kind) if isinstance(kind, str) else None
    is_misread = isinstance(value, bool) and kind in ("integer", "number")
    if expected is not None and (is_misread or not isinstance(value, expected)):
        return f"the field {name} must be of the type {kind}"
    if choices := _choices(form):
        given = value if isinstance(value, list | tuple) else [value]
        if wrong := [each for each in given if each not in choices]:
            return f"the field {name} can't be {wrong[0]!r}; choose from: {', '.join(map(str, choices))}"
    return None


def _choices(form: Mapping[str, Any]) -> list[Any]:
    """Return the values that a field accepts, or an empty list if it accepts any."""
    inner = form.get("items") if form.get("type") == "array" else form
    if not isinstance(inner, Mapping):
        return []
    if isinstance(inner.get("enum"), list | tuple):
        return list(inner["enum"])
    titled = inner.get("oneOf") or inner.get("anyOf") or ()
    return [each["const"] for each in titled if isinstance(each, Mapping) and "const" in each]
