"""A tool built from a pydantic model for its arguments and a function that does the work.

Loom's own tools are built this way. `user_tools` builds tools from user code.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import ErrorDetails

from loom.activities.json_schemas import subschemas
from loom.activities.ports import ToolContext, ToolOutput
from loom.activities.toolbox.truncation import RESULT_LIMIT
from loom.domain.core.argument_names import argument_name
from loom.domain.core.errors import ToolValidationError
from loom.domain.core.json_text import about_text, is_finite
from loom.domain.core.messages import JsonObject, canonical
from loom.domain.core.tool_calls import Effect, Scope, ToolSpec, Verdict
from loom.domain.core.value_problems import problem_of_value
from loom.domain.permissions.subjects import Subject


class Arguments(BaseModel):
    """The arguments of a tool. Undeclared fields are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


A = TypeVar("A", bound=BaseModel)


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionTool(Generic[A]):
    """A tool whose attributes are given as values."""

    spec: ToolSpec
    arguments: type[A]
    function: Callable[[A, ToolContext], Awaitable[str | ToolOutput]]
    touches: Callable[[A, Path], Sequence[Subject]] | None = None
    granted: Callable[[A], Sequence[str]] | None = None
    """Returns the allow rules that an approval for the rest of the run adds. None if such an approval covers the whole
    tool.
    """
    missing: str | None = None
    """Explains what is missing on this worker and how to fix it."""
    max_output: int = RESULT_LIMIT
    grace: float = 0.0
    """Extra seconds that the tool needs to stop its program after an agent's timeout."""
    longest: float | None = None
    """The tool's own limit in seconds, which an agent's timeout can't exceed. If None, there is none."""

    quick: bool = False
    """Whether a call only reads and usually takes a few milliseconds, so it may run in the activity that called the
    model.
    """

    is_sandboxed: bool = False
    """Whether the sandbox keeps the tool from writing the worker's own files."""

    uses_state: ClassVar[bool] = False
    """Loom's own tools don't use `ToolContext.state`."""

    def is_available(self) -> str | None:
        """Return None if the tool can run on this worker. Otherwise, explain what is missing and how to fix it."""
        return self.missing

    def parse(self, arguments: JsonObject) -> A:
        """Validate the arguments. A null argument is treated as not given."""
        given = {name: value for name, value in arguments.items() if value is not None}
        return validated(self.spec, self.arguments, given)

    def subjects(self, arguments: object, workspace: Path) -> Sequence[Subject]:
        """Return the subjects to match against permission patterns."""
        return self.touches(cast("A", arguments), workspace) if self.touches else ()

    def grants(self, arguments: object) -> Sequence[str]:
        """Return the allow rules that are added if this call is approved for the rest of the run."""
        return self.granted(cast("A", arguments)) if self.granted else (self.spec.name,)

    def run(self, arguments: object, context: ToolContext) -> Awaitable[str | ToolOutput]:
        """Run the call."""
        return self.function(cast("A", arguments), context)


def tool_spec(
    name: str,
    description: str,
    arguments: type[BaseModel],
    *,
    effect: Effect,
    timeout: float = 120.0,
    scope: Scope = Scope.SANDBOXED,
    declared: Verdict | None = None,
    ephemeral: int = 0,
    queue: str | None = None,
    parallel: bool | None = None,
) -> ToolSpec:
    """Return the spec of one of Loom's own tools with these arguments. Tools that only read may run in parallel."""
    return ToolSpec(
        name=name,
        description=description,
        parameters=concise(schema_of(arguments)),
        effect=effect,
        parallel=effect is Effect.READ if parallel is None else parallel,
        timeout=timeout,
        queue=queue,
        scope=scope,
        declared=declared,
        ephemeral=ephemeral,
    )


class _Schema(GenerateJsonSchema):
    """Omits a default from the schema without a warning if JSON can't represent the default."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - the base's


def schema_of(arguments: type[BaseModel]) -> JsonObject:
    """Return the model's JSON Schema without titles and docstrings, which would only consume tokens."""
    schema = _untitled(arguments.model_json_schema(schema_generator=_Schema))
    schema.pop("description", None)
    return schema


_UNSAID: Final = frozenset({
    *("additionalProperties", "minLength", "maxLength", "minItems", "maxItems", "pattern"),
    *("minimum", "exclusiveMinimum", "maximum"),
})  # fmt: skip
"""What a model rarely needs to know before it calls a tool. If it is wrong, the error says so."""


def concise(schema: JsonObject) -> JsonObject:
    """Return a schema of one of Loom's own tools with fewer tokens, because it is part of every model call. Definitions
    stand where they are used, an optional value has only its own type, and limits and defaults of numbers are left out.
    """
    definitions = schema.get("$defs", {})
    return {key: _concise(key, value, definitions) for key, value in schema.items() if _is_said(key, value)}


def _concise(key: str, value: Any, definitions: JsonObject) -> Any:
    match value:
        case {"$ref": str() as name}:
            named = {key: each for key, each in definitions[name.rpartition("/")[2]].items() if key != "description"}
            return _concise(key, named, definitions)
        case {"anyOf": [kind, {"type": "null"}], **others}:
            return _concise(key, {**kind, **others}, definitions)
        case Mapping():
            is_named = key == "properties"
            return {
                name: _concise("" if is_named else name, each, definitions)
                for name, each in value.items()
                if is_named or _is_said(name, each)
            }
        case list():
            return [_concise("", each, definitions) for each in value]
        case _:
            return value


def _is_said(key: str, value: Any) -> bool:
    if key == "default":
        return bool(value) and value != "." and not isinstance(value, int | float)
    return key not in _UNSAID and key != "$defs"


def validated(spec: ToolSpec, model: type[A], given: JsonObject) -> A:
    """Return the arguments as an instance of the model. Raises a ToolValidationError that names the field and explains
    how to fix it.
    """
    if broken := [name for name, value in given.items() if not _is_text(value)]:
        where = _shown_steps(spec, broken[:1])[0]
        raise ToolValidationError(f"`{where}` contains half a surrogate pair: send whole characters")
    if endless := [name for name, value in given.items() if not is_finite(value)]:
        where = _shown_steps(spec, endless[:1])[0]
        raise ToolValidationError(f"`{where}` contains NaN or an infinite number: send finite numbers")
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise ToolValidationError(_explain(spec, error), tool=spec.name) from None


def _untitled(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _small(key, value) for key, value in schema.items() if key != "title"}


def _small(key: str, value: Any) -> Any:
    if key in ("properties", "$defs") and isinstance(value, Mapping):
        return {name: _untitled(part) for name, part in value.items()}
    if isinstance(value, Mapping):
        return _untitled(value)
    if isinstance(value, list):
        return [_untitled(item) if isinstance(item, Mapping) else item for item in value]
    return value


def _is_text(value: object) -> bool:
    """Whether stores and models accept the text. JSON escapes can represent text that UTF-8 can't."""
    try:
        (value if isinstance(value, str) else canonical({"": value})).encode()
    except UnicodeEncodeError:
        return False
    return True


def _explain(spec: ToolSpec, error: ValidationError) -> str:
    lines = [_line(spec, detail) for detail in error.errors(include_url=False)]
    return "\n".join([f"{spec.name} was not run because its arguments are wrong:", *(f"- {line}" for line in lines)])


def _line(spec: ToolSpec, detail: ErrorDetails) -> str:
    known = spec.parameters.get("properties", {})
    steps = _shown_steps(spec, detail["loc"])
    where = ".".join(steps) or "arguments"
    wanted = _wanted(known.get(steps[0], {})) if steps else "one JSON object"
    match detail["type"]:
        case "missing":
            return f"`{where}` is missing: add it ({wanted})"
        case "extra_forbidden":
            near = get_close_matches(where, known, n=1)
            hint = f"did you mean `{near[0]}`? {spec.name}" if near else f"{spec.name}"
            return f"`{where}` is not an argument: leave it out; {hint} takes {', '.join(known) or 'none'}"
        case _:
            if about := about_text(detail["input"]):
                return f"`{where}` {problem_of_value(detail)}, but {about}"
            return f"`{where}` {problem_of_value(detail)}, got {_shown(detail['input'])}: send {wanted}"


def _shown_steps(spec: ToolSpec, steps: Sequence[str | int]) -> list[str]:
    """Return the steps to a value under the names that the model sees."""
    names = {name for each in subschemas(spec.parameters) for name in each.get("properties", ())}
    return [shown if (shown := argument_name(str(step))) in names else str(step) for step in steps]


def _wanted(schema: JsonObject) -> str:
    kind = schema.get("type") or "/".join(str(option.get("type")) for option in schema.get("anyOf", ()))
    return ": ".join(part for part in (kind, schema.get("description")) if part) or "a valid value"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
