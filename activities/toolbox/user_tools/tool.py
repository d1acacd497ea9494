"""A tool built from a user's function. The registry of the user's module stores tools in this form.

The tool's arguments are kept separate from Loom's own arguments, so that a parameter name never has a special meaning
for the pipeline.
"""

from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, model_serializer
from pydantic.fields import FieldInfo

from loom.activities.ports import ToolContext, ToolOutput
from loom.activities.toolbox.code_digest import code_digest
from loom.activities.toolbox.function_tool import validated
from loom.activities.toolbox.tool_schemas import ToolSchema
from loom.activities.toolbox.user_tools.call import called
from loom.activities.toolbox.user_tools.dependencies import Dependencies, named
from loom.activities.toolbox.user_tools.options import ToolOptions, check_name, checked, schema_for, spec_for
from loom.activities.toolbox.user_tools.paths import confined, refuse_hidden_paths, subjects_of
from loom.activities.toolbox.user_tools.signature import described, is_asynchronous
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject
from loom.domain.core.tool_calls import Effect, Scope, ToolSpec
from loom.domain.permissions.subjects import Subject


class Given(BaseModel):
    """Validated arguments by parameter. The serialized form contains the arguments as the tool interpreted them."""

    values: Mapping[str, Any]
    checked: Any
    """The arguments as an instance of the tool's own model."""

    @model_serializer
    def _dumped(self) -> dict[str, Any]:
        plain: dict[str, Any] = self.checked.model_dump(mode="json", by_alias=True, fallback=str, warnings=False)
        return plain


@dataclass(frozen=True, kw_only=True, slots=True)
class UserTool:
    """A user's function that implements the `Tool` port."""

    spec: ToolSpec
    origin: str
    """Location where the function is defined, for display."""
    arguments: type[BaseModel]
    schema: ToolSchema
    """The arguments' schema, which restores the parameters' own names."""
    fields: Mapping[str, str]
    """The field of `arguments` for each parameter."""
    nullable: frozenset[str]
    call: Callable[[Given, ToolContext, Mapping[str, Any]], Any]
    """Calls the function with its arguments, the context, and the values of the parameters in `needs`."""
    blocking: bool
    available: Callable[[], object] | None
    has_own_timeout: bool
    quick: bool = False
    """Whether a call may run in the activity that called the model."""
    needs: Mapping[str, Any] = field(default_factory=dict)
    """The type of each parameter that receives a value from the worker's dependencies."""
    dependencies: Dependencies = field(default_factory=Dependencies)
    remade: "Callable[[Container[Any]], UserTool] | None" = None
    """Creates the same tool again, and reads its signature as if these types were provided."""
    home: Path | None = None
    """The folder with Loom's own state on the worker. No path can access it."""
    code: str = ""
    """Digest of the user's code. Empty if the code can't be read."""

    def is_available(self) -> str | None:
        """Return None if the tool can run on this worker. Otherwise, explain what is missing and how to fix it."""
        if self.available is None:
            return None
        try:
            answer = self.available()
        except Exception as error:  # noqa: BLE001 - a failing check means that something is missing
            return f"its check failed with {type(error).__name__}: {error}"
        if isinstance(answer, str):
            return answer or None
        return None if answer in (True, None) else "it reports that it is currently unavailable: use another tool"

    def parse(self, arguments: JsonObject) -> Given:
        """Validate the arguments. Null means that an argument wasn't given, unless the parameter accepts null."""
        arguments = self.schema.original(arguments)
        given = {name: value for name, value in arguments.items() if value is not None or name in self.nullable}
        model = validated(self.spec, self.arguments, given)
        values = {name: getattr(model, field) for name, field in self.fields.items()}
        return Given.model_construct(values=values, checked=model)

    def subjects(self, arguments: object, workspace: Path) -> Sequence[Subject]:
        """Return the subjects to match against permission patterns: every text, number and path in the arguments."""
        values = cast("Given", arguments).values
        place, reads = workspace if self._is_confined else None, self.spec.effect is Effect.READ
        return tuple(
            each for name in values for each in subjects_of(name, values[name], place, home=self.home, reads=reads)
        )

    def grants(self, arguments: object) -> Sequence[str]:
        """Return the rule that an approval for the rest of the run adds. It covers the whole tool."""
        return (self.spec.name,)

    def run(self, arguments: object, context: ToolContext) -> Awaitable[str | ToolOutput]:
        """Call the function with its paths confined to the workspace."""
        given = cast("Given", arguments)
        if self._is_confined:
            given = self._within(given, context.workspace)
        injected = self.dependencies.values_for(self.needs)
        return called(self.spec.name, lambda inner: self.call(given, inner, injected), context, blocking=self.blocking)

    def with_types(self, provided: Container[Any]) -> "UserTool":
        """Return the tool with parameters of these types injected. The model doesn't send them."""
        return self.remade(provided) if self.remade is not None else self

    def with_dependencies(self, dependencies: Dependencies) -> "UserTool":
        """Return the tool for a worker with these dependencies. Raises BadRequest if a required type isn't provided."""
        tool = self.with_types(dependencies) if dependencies else self
        for parameter, kind in tool.needs.items():
            if kind not in dependencies:
                raise BadRequest(
                    f"{self.origin}: parameter `{parameter}` of the tool {self.spec.name} has the type {named(kind)},"
                    " which nothing provides and JSON cannot represent: register a factory for it with `app.provide`,"
                    " or take text, numbers, lists, enums, dataclasses or pydantic models",
                    field="tool",
                )
        return replace(tool, dependencies=dependencies) if tool.needs else tool

    @property
    def _is_confined(self) -> bool:
        return self.spec.scope is Scope.SANDBOXED

    def _within(self, given: Given, place: Path) -> Given:
        values = {name: confined(value, place, self.home) for name, value in given.values.items()}
        changed = {self.fields[name]: value for name, value in values.items() if value is not given.values[name]}
        checked = given.checked.model_copy(update=changed) if changed else given.checked
        return Given.model_construct(values=values, checked=checked)


def user_tool(
    function: Callable[..., Any], origin: str, options: ToolOptions, provided: Container[Any] = ()
) -> UserTool:
    """Return a tool built from a function. Raises a BadRequest that explains the error and how to fix it."""
    found = described(function, origin, provided)
    tool = assembled(
        name=options.get("name", getattr(function, "__name__", "")),
        description=options.get("description", found.description),
        origin=origin,
        arguments=found.arguments,
        fields=found.fields,
        nullable=found.nullable,
        call=lambda given, context, injected: found.call(given.values, context, injected),
        blocking=not is_asynchronous(function),
        options=options,
    )
    return replace(
        tool,
        code=code_digest(function),
        needs=found.needs,
        remade=partial(user_tool, function, origin, options),
    )


def assembled(
    *,
    name: str,
    description: str,
    origin: str,
    arguments: type[BaseModel],
    fields: Mapping[str, str],
    nullable: frozenset[str],
    call: Callable[[Given, ToolContext, Mapping[str, Any]], Any],
    blocking: bool,
    options: ToolOptions,
) -> UserTool:
    """Return the tool after checking its name and options."""
    check_name(name, origin)
    chosen = checked(options, origin)
    schema = schema_for(arguments, origin)
    tool = UserTool(
        spec=spec_for(name, description, schema, chosen, origin),
        origin=origin,
        arguments=arguments,
        schema=schema,
        fields=fields,
        nullable=nullable,
        call=call,
        blocking=blocking,
        available=chosen.get("available"),
        has_own_timeout="timeout" in chosen,
        quick=chosen.get("quick", False),
    )
    if tool.available is not None and is_asynchronous(tool.available):
        raise BadRequest(f"{origin}: `available` must be a plain function, not an async one", field="tool")
    if tool.spec.scope is Scope.SANDBOXED:
        refuse_hidden_paths({name: _type(arguments.model_fields[field]) for name, field in fields.items()}, origin)
    return tool


def _type(field: FieldInfo) -> Any:
    """Return the field's type with all of its annotations."""
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
