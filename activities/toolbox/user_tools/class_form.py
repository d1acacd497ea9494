"""A tool as a class: any object with a name, a description, a model of its arguments and a method to run.

    class Weather:
        name = "weather"
        description = "Tell the weather of a town."
        args_schema = Town                      # a pydantic model
        is_read_only = True                     # or effect = "read"

        async def run(self, town: Town) -> str: ...

The class imports nothing from Loom. `run` (or `__call__`) takes the model, or its fields by name, and may take a
`context`.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import Parameter
from typing import Any

from pydantic import BaseModel, ConfigDict

from loom.activities.ports import ToolContext
from loom.activities.toolbox.code_digest import code_digest
from loom.activities.toolbox.user_tools.options import ToolOptions
from loom.activities.toolbox.user_tools.signature import CONTEXT, context_parameter, is_asynchronous, takes_null
from loom.activities.toolbox.user_tools.tool import Given, UserTool, assembled
from loom.domain.core.errors import BadRequest


def has_class_form(thing: object) -> bool:
    """Whether it looks like a tool and not like a function."""
    return hasattr(thing, "args_schema") or (hasattr(thing, "name") and hasattr(thing, "run"))


def class_tool(thing: Any, origin: str, options: ToolOptions) -> UserTool:
    """The tool that an object, or a class with a constructor without arguments, describes."""
    made = _made(thing, origin) if isinstance(thing, type) else thing
    run = _runner(made, origin)
    model = _model(made, origin)
    chosen: ToolOptions = {**_said(made, origin), **options}
    tool = assembled(
        name=chosen.get("name", ""),
        description=chosen.get("description", ""),
        origin=origin,
        arguments=model,
        fields={field.alias or name: name for name, field in model.model_fields.items()},
        nullable=frozenset(f.alias or name for name, f in model.model_fields.items() if takes_null(f.annotation)),
        call=_caller(run, model, origin),
        blocking=not is_asynchronous(run),
        options=chosen,
    )
    return replace(tool, code=code_digest(run))


def _made(kind: type, origin: str) -> Any:
    try:
        return kind()
    except TypeError as error:
        raise BadRequest(
            f"{origin} cannot be made without arguments ({error}): register an object", field="tool"
        ) from None


def _runner(made: Any, origin: str) -> Callable[..., Any]:
    run = getattr(made, "run", None) or (made if callable(made) else None)
    if run is None or not callable(run):
        raise BadRequest(f"{origin} has nothing to run: give it a method `run` or `__call__`", field="tool")
    found: Callable[..., Any] = run
    return found


def _model(made: Any, origin: str) -> type[BaseModel]:
    """The model of the arguments. It rejects unknown ones unless it is configured otherwise."""
    schema = getattr(made, "args_schema", None)
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        raise BadRequest(f"{origin} has no `args_schema`: set it to a pydantic model of its arguments", field="tool")
    if "extra" in schema.model_config:
        return schema
    strict: type[BaseModel] = type(
        schema.__name__,
        (schema,),
        {"model_config": ConfigDict(extra="forbid"), "__module__": schema.__module__, "__doc__": schema.__doc__},
    )
    return strict


def _said(made: Any, origin: str) -> ToolOptions:
    """The object's attributes as options of `app.tool`."""
    said: dict[str, Any] = {"name": getattr(made, "name", ""), "description": getattr(made, "description", "")}
    options = {name: name for name in ("timeout", "ephemeral", "queue", "permission", "scope")}
    for option, attribute in (options | {"available": "is_available"}).items():
        if getattr(made, attribute, None) is not None:
            said[option] = getattr(made, attribute)
    reads = _claim(made, "is_read_only", origin)
    said["effect"] = getattr(made, "effect", None) or ("read" if reads else "once")
    if (parallel := _claim(made, "is_concurrency_safe", origin)) is not None:
        said["parallel"] = parallel and said["effect"] == "read"
    chosen: ToolOptions = said  # type: ignore[assignment]
    return chosen


def _claim(made: Any, name: str, origin: str) -> bool | None:
    """A boolean, as an attribute or a method without arguments."""
    claim = getattr(made, name, None)
    try:
        answer = claim() if callable(claim) else claim
    except TypeError as error:
        raise BadRequest(f"{origin}: `{name}` must need no arguments ({error})", field="tool") from None
    return None if answer is None else bool(answer)


def _caller(run: Callable[..., Any], model: type[BaseModel], origin: str) -> Callable[[Given, ToolContext], Any]:
    """How to call `run`: with the model, or with its fields by name."""
    parameters = inspect.signature(run).parameters
    fields = {field.alias or name for name, field in model.model_fields.items()}
    context = context_parameter(run, origin)
    if context is None and CONTEXT in parameters and CONTEXT not in fields:
        context = CONTEXT
    rest = {name: p for name, p in parameters.items() if name != context}
    if _takes_model(rest, fields):
        (only,) = rest
        return lambda given, told: run(**{only: given.checked, **({context: told} if context else {})})
    _check_fields(rest, fields, origin)
    return lambda given, told: run(**{**given.values, **({context: told} if context else {})})


def _takes_model(rest: Mapping[str, Parameter], fields: set[str]) -> bool:
    if len(rest) != 1:
        return False
    (only,) = rest.values()
    return only.name not in fields and only.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def _check_fields(rest: Mapping[str, Parameter], fields: set[str], origin: str) -> None:
    takes_any = any(p.kind is Parameter.VAR_KEYWORD for p in rest.values())
    named = {n for n, p in rest.items() if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)}
    wanting = sorted(name for name in named - fields if rest[name].default is Parameter.empty)
    unwanted = sorted(fields - named) if not takes_any else []
    if wanting or unwanted:
        raise BadRequest(
            f"{origin}: `run` and `args_schema` differ in {', '.join([*wanting, *unwanted])}: let `run` take the"
            " model, or every field by its name",
            field="tool",
        )
