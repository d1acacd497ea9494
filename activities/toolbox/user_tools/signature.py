"""Derive a tool from a function: its arguments from the signature, and their descriptions from the docstring.

The arguments become a pydantic model. Its fields have generated names (`p0`, `p1` …), with the parameters' names as
aliases. Parameters can therefore be called `schema`, `copy` or `_x` without conflicting with pydantic's names, and no
parameter is mistaken for an argument that Loom recognizes.
"""

import inspect
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from docstring_parser import ParseError, parse
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo

from loom.activities.ports import ToolContext
from loom.activities.toolbox.function_tool import schema_of
from loom.activities.toolbox.user_tools.dependencies import is_provided, plain
from loom.domain.core.errors import BadRequest

CONTEXT: Final = "context"
"""A parameter with this name and without a type annotation receives the call's ToolContext."""

_MANY: Final[Mapping[Any, str]] = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}
_NOT_OF_A_USER: Final = ("builtins", "typing", "collections.abc")
_STRICT: Final = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """A function described as a tool: its arguments and their descriptions."""

    function: Callable[..., Any]
    description: str
    arguments: type[BaseModel]
    fields: Mapping[str, str]
    """The field of `arguments` for each parameter."""
    nullable: frozenset[str]
    """Parameters that accept null. For any other parameter, null means that it wasn't given."""
    positional: tuple[str, ...]
    """Positional-only parameters, in order."""
    context: str | None
    """The parameter that receives the ToolContext. It is never shown to the model."""
    needs: Mapping[str, Any]
    """The type of each parameter that receives a value from the worker's dependencies. These parameters are never shown
    to the model.
    """

    def call(self, values: Mapping[str, Any], context: ToolContext, injected: Mapping[str, Any]) -> Any:
        """Call the function with these values by parameter name."""
        given = {**values, **injected, **({} if self.context is None else {self.context: context})}
        return self.function(*[given.pop(name) for name in self.positional], **given)


def described(function: Callable[..., Any], origin: str, provided: Container[Any] = ()) -> Described:
    """Describe a function as a tool. If this isn't possible, raise a BadRequest that names the function, the parameter
    and the fix.

    A parameter whose type is `provided` isn't an argument. The same applies to a parameter whose class has no JSON
    representation, because the type may still be provided before the worker starts.
    """
    parameters = _parameters(function, origin)
    hints = types_of(function, origin)
    context = _context_of(parameters, hints)
    needs = {
        p.name: plain(kind)
        for p in parameters
        if p.name != context and (kind := hints.get(p.name)) is not None
        if is_provided(kind, provided) or can_only_be_provided(kind)
    }
    taken = [p for p in parameters if p.name != context and p.name not in needs]
    text, meanings = read_docstring(inspect.getdoc(_documented(function)) or "")
    fields = {p.name: f"p{number}" for number, p in enumerate(taken)}
    types = {p.name: hints.get(p.name, Any) for p in taken}
    given = {p.name: _field(p, types[p.name], meanings.get(p.name, "")) for p in taken}
    return Described(
        function=function,
        description=text,
        arguments=_model(types, given, fields, origin),
        fields=fields,
        nullable=frozenset(name for name, kind in types.items() if takes_null(kind)),
        positional=tuple(p.name for p in parameters if p.kind is Parameter.POSITIONAL_ONLY),
        context=context,
        needs=needs,
    )


def can_only_be_provided(kind: Any) -> bool:
    """Whether the type is a class whose values JSON can't represent, such as a connection pool."""
    kind = plain(kind)
    base = get_origin(kind) or kind
    if (
        not isinstance(base, type)
        or base.__module__ in ("builtins", "typing", "collections.abc")
        or base is ToolContext
    ):
        return False
    try:
        TypeAdapter(kind).json_schema()
    except (PydanticUserError, TypeError, ValueError):
        return True
    return False


def read_docstring(text: str) -> tuple[str, Mapping[str, str]]:
    """Return the descriptions of the function and its parameters from a docstring in Google, NumPy or Sphinx style."""
    try:
        found = parse(text)
    except ParseError:
        return text.strip(), {}
    said = {
        name.strip().lstrip("*"): " ".join((entry.description or "").split())
        for entry in found.params
        for name in entry.arg_name.split(",")
    }
    return (found.description or "").strip(), said


def takes_null(kind: Any) -> bool:
    """Whether null is a valid value of this type."""
    if kind in (Any, object, None, NoneType):
        return True
    if hasattr(kind, "__metadata__"):  # Annotated
        return takes_null(kind.__origin__)
    return get_origin(kind) in (Union, UnionType) and any(takes_null(option) for option in get_args(kind))


def context_parameter(function: Callable[..., Any], hints: Mapping[str, Any]) -> str | None:
    """Return the parameter that receives the ToolContext."""
    return _context_of(list(inspect.signature(function).parameters.values()), hints)


def is_asynchronous(function: Callable[..., Any]) -> bool:
    """Whether calling the function returns a coroutine or an async generator, so that it can run on the event loop."""
    while isinstance(function, partial):
        function = function.func
    kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    called = getattr(type(function), "__call__", None)  # noqa: B004 - its kind matters, not whether it exists
    return any(kind(function) or kind(called) for kind in kinds)


def _parameters(function: Callable[..., Any], origin: str) -> list[Parameter]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise BadRequest(f"{origin} has no signature to read ({error}): wrap it in a function", field="tool") from None
    for parameter in parameters:
        if (stars := _MANY.get(parameter.kind)) is not None:
            raise BadRequest(
                f"{origin}: a model cannot fill `{stars}{parameter.name}`: name each parameter, or take a list or dict",
                field="tool",
            )
    if parameters and parameters[0].name in ("self", "cls"):
        raise BadRequest(
            f"{origin}: `{parameters[0].name}` is the method's object: register the method of an object,"
            " `app.register_tool(thing.method)`",
            field="tool",
        )
    return parameters


def types_of(function: Callable[..., Any], origin: str) -> Mapping[str, Any]:
    try:
        return get_type_hints(_documented(function), include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise BadRequest(
            f"{origin}: its types cannot be read ({error}): define or import them at the module's top level, and not"
            " only for type checkers",
            field="tool",
        ) from None


def _documented(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the object with the annotations and docstring: a partial's function, or an object's `__call__`."""
    while isinstance(function, partial):
        function = function.func
    if inspect.isroutine(function):
        return function
    called: Callable[..., Any] = type(function).__call__
    return called


def _context_of(parameters: Sequence[Parameter], hints: Mapping[str, Any]) -> str | None:
    return next((p.name for p in parameters if _is_context(p, hints.get(p.name))), None)


def _is_context(parameter: Parameter, kind: Any) -> bool:
    if parameter.name == CONTEXT and parameter.annotation is Parameter.empty:
        return True
    return kind is ToolContext or (get_origin(kind) in (Union, UnionType) and ToolContext in get_args(kind))


def _field(parameter: Parameter, kind: Any, meaning: str) -> Any:
    """Return the parameter's default and description. An explicit `Field(…)` takes precedence over the docstring."""
    given = parameter.default
    own = given if isinstance(given, FieldInfo) else FieldInfo.from_annotation(kind)
    known: dict[str, Any] = {"alias": parameter.name, "description": own.description or meaning or None}
    if isinstance(given, FieldInfo):
        return FieldInfo.merge_field_infos(given, Field(**known))
    return Field(**known) if given is Parameter.empty else Field(given, **known)


def _model(
    types: Mapping[str, Any], given: Mapping[str, Any], fields: Mapping[str, str], origin: str
) -> type[BaseModel]:
    definitions: dict[str, Any] = {fields[name]: (kind, given[name]) for name, kind in types.items()}
    try:
        model: type[BaseModel] = create_model("Arguments", __config__=_STRICT, **definitions)
        schema_of(model)
    except (PydanticUserError, TypeError, ValueError) as error:
        name, why = _culprit(types, error)
        raise BadRequest(
            f"{origin}: parameter `{name}` has a type that JSON cannot represent ({why}): use text, numbers, lists,"
            " enums, dataclasses or pydantic models, or make it a ToolContext",
            field="tool",
        ) from None
    return model


def _culprit(types: Mapping[str, Any], error: Exception) -> tuple[str, str]:
    for name, kind in types.items():
        try:
            TypeAdapter(kind).json_schema()
        except (PydanticUserError, TypeError, ValueError) as own:
            return name, _first_line(own)
    return ", ".join(types), _first_line(error)


def _first_line(error: Exception) -> str:
    return re.split(r"[\n.]", str(error), maxsplit=1)[0]
