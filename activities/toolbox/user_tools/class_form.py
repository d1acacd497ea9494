"""A tool in class form: any object with a name, a description, an argument model and a `run` method.

    class Weather:
        name = "weather"
        description = "Tell the weather of a town."
        args_schema = Town                      # a pydantic model
        is_read_only = True                     # or effect = "read"

        async def run(self, town: Town) -> str: ...

The class doesn't need to import Loom. `run` (or `__call__`) takes the model, or its fields by name. The method may also
take a `context` and parameters of types that the app provides.
"""

import inspect
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from functools import partial
from inspect import Parameter
from typing import Any

from pydantic import BaseModel, ConfigDict

from loom.activities.ports import ToolContext
from loom.activities.toolbox.code_digest import code_digest
from loom.activities.toolbox.user_tools.dependencies import is_provided, plain
from loom.activities.toolbox.user_tools.options import ToolOptions
from loom.activities.toolbox.user_tools.signature import (
    CONTEXT,
    can_only_be_provided,
    context_parameter,
    is_asynchronous,
    takes_null,
    types_of,
)
from loom.activities.toolbox.user_tools.tool import Given, UserTool, assembled
from loom.domain.core.errors import BadRequest


def has_class_form(thing: object) -> bool:
    """Whether the object looks like a tool rather than a function."""
    return hasattr(thing, "args_schema") or (hasattr(thing, "name") and hasattr(thing, "run"))


def class_tool(thing: Any, origin: str, options: ToolOptions, provided: Container[Any] = ()) -> UserTool:
    """Return the tool that an object describes. A class is instantiated without arguments first."""
    made = _made(thing, origin) if isinstance(thing, type) else thing
    run = _runner(made, origin)
    model = _model(made, origin)
    chosen: ToolOptions = {**_said(made, origin), **options}
    hints = types_of(run, origin)
    fields = {field.alias or name for name, field in model.model_fields.items()}
    needs = {
        name: plain(kind)
        for name, kind in hints.items()
        if name != "return" and (is_provided(kind, provided) or (name not in fields and can_only_be_provided(kind)))
    }
    tool = assembled(
        name=chosen.get("name", ""),
        description=chosen.get("description", ""),
        origin=origin,
        arguments=model,
        fields={field.alias or name: name for name, field in model.model_fields.items()},
        nullable=frozenset(f.alias or name for name, f in model.model_fields.items() if takes_null(f.annotation)),
        call=_caller(run, fields, context_parameter(run, hints), needs, origin),
        blocking=not is_asynchronous(run),
        options=chosen,
    )
    return replace(tool, code=code_digest(run), needs=needs, remade=partial(class_tool, made, origin, options))


def _made(kind: type, origin: str) -> Any:
    try:
        return kind()
    except TypeError as error:
        raise BadRequest(
            f"{origin} cannot be created without arguments ({error}): register an object", field="tool"
        ) from None


def _runner(made: Any, origin: str) -> Callable[..., Any]:
    run = getattr(made, "run", None) or (made if callable(made) else None)
    if run is None or not callable(run):
        raise BadRequest(f"{origin} has nothing to run: give it a `run` or `__call__` method", field="tool")
    found: Callable[..., Any] = run
    return found


def _model(made: Any, origin: str) -> type[BaseModel]:
    """Return the model of the arguments. It rejects unknown arguments unless it is configured otherwise."""
    schema = getattr(made, "args_schema", None)
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        raise BadRequest(f"{origin} has no `args_schema`: set it to a pydantic model of its arguments", field="tool")
    if "extra" in schema.model_config:
        return schema
    config = ConfigDict(extra="forbid", allow_inf_nan=schema.model_config.get("allow_inf_nan", False))
    strict: type[BaseModel] = type(
        schema.__name__,
        (schema,),
        {"model_config": config, "__module__": schema.__module__, "__doc__": schema.__doc__},
    )
    return strict


def _said(made: Any, origin: str) -> ToolOptions:
    """Return the object's attributes as options for `app.tool`."""
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
    """Return a boolean from an attribute or from a method without arguments."""
    claim = getattr(made, name, None)
    try:
        answer = claim() if callable(claim) else claim
    except TypeError as error:
        raise BadRequest(f"{origin}: `{name}` must not require arguments ({error})", field="tool") from None
    return None if answer is None else bool(answer)


def _caller(
    run: Callable[..., Any], fields: set[str], context: str | None, needs: Mapping[str, Any], origin: str
) -> Callable[[Given, ToolContext, Mapping[str, Any]], Any]:
    """Return a function that calls `run` with the model or with the model's fields by name, and with the context and
    dependencies.
    """
    parameters = inspect.signature(run).parameters
    if context is None and CONTEXT in parameters and CONTEXT not in (*fields, *needs):
        context = CONTEXT
    rest = {name: p for name, p in parameters.items() if name != context and name not in needs}

    def beside(call: ToolContext, injected: Mapping[str, Any]) -> dict[str, Any]:
        return {**injected, **({context: call} if context else {})}

    if _takes_model(rest, fields):
        (only,) = rest
        return lambda given, call, injected: run(**{only: given.checked, **beside(call, injected)})
    _check_fields(rest, fields, origin)
    return lambda given, call, injected: run(**{**given.values, **beside(call, injected)})


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
