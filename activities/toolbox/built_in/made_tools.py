"""`create_tool`, and the tools that an agent creates with it.

A created tool is Python code with a `run` function. The code is checked before it is accepted, runs only in the sandbox
without network access, and needs the same approval as the `python` tool. A created tool is part of its run's spec, so
it is pinned, recorded, and removed when the run ends.
"""

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from pydantic import Field

from loom.activities.json_schemas import BrokenSchema
from loom.activities.ports import Tool, ToolContext, ToolSet
from loom.activities.toolbox.argument_schema import ArgumentSchema
from loom.activities.toolbox.built_in.python import run_python
from loom.activities.toolbox.built_in.shell import GRACE, Sandbox, limited, outcome
from loom.activities.toolbox.function_tool import Arguments, FunctionTool, tool_spec
from loom.activities.toolbox.static_check import complaints
from loom.domain.core.errors import ToolUnavailableError, ToolValidationError
from loom.domain.core.messages import JsonObject, canonical, short_digest
from loom.domain.core.tool_calls import Effect, Scope, ToolSpec, Verdict, made_tool
from loom.domain.core.tool_names import CREATE_TOOL
from loom.domain.permissions.subjects import Subject

_CALL: Final = """

import json as _json, sys as _sys
_answer = run(**_json.load(_sys.stdin))
print(_answer if isinstance(_answer, str) else _json.dumps(_answer, ensure_ascii=False))
"""
"""Appended to the agent's code. The output includes text that the agent's code prints."""


class CreateTool(Arguments):
    """Arguments of create_tool."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{1,40}$", description="Lowercase letters, digits and underscores")
    description: str = Field(min_length=1, max_length=1000, description="What it does and when to use it")
    parameters: dict[str, object] = Field(description="JSON Schema of its arguments, with the type `object`")
    code: str = Field(
        min_length=1,
        max_length=50_000,
        description="Python with a function `run` that takes the arguments by name and returns text or JSON",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeTools:
    """Creates tools and runs them."""

    sandbox: Sandbox | None
    missing: str = "there is no sandbox"
    """Explains how to set up a sandbox if there is none."""

    def maker(self) -> Tool:
        """Return the `create_tool` tool. The run reads the new tool from the call and adds the tool to its spec."""
        description = (
            "Make a tool from Python code. From your next turn on, it is called made__NAME. It can only compute: it "
            "has the standard library, but no files, no network and no other programs."
        )
        spec = tool_spec(
            CREATE_TOOL, description, CreateTool, effect=Effect.READ, scope=Scope.CONTEXT, declared=Verdict.ASK
        )
        missing = None if self.sandbox else self.missing
        return FunctionTool(spec=spec, arguments=CreateTool, function=_checked, missing=missing)

    def added_to(self, box: ToolSet, specs: Iterable[ToolSpec]) -> ToolSet:
        """Return the tool set plus the created tools in these specs."""
        made = {spec.name: self._tool(spec) for spec in specs if spec.source}
        return {**made, **box} if made else box

    def _tool(self, spec: ToolSpec) -> Tool:
        return MadeTool(spec=spec, schema=ArgumentSchema(spec.parameters), place=self)


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeTool:
    """One tool that an agent created."""

    spec: ToolSpec
    schema: ArgumentSchema
    place: MadeTools
    grace: float = GRACE

    def is_available(self) -> str | None:
        """Return None if the tool can run on this worker. Otherwise, explain what is missing and how to fix it."""
        return None if self.place.sandbox else self.place.missing

    def parse(self, arguments: JsonObject) -> JsonObject:
        """Validate the arguments. Raises a ToolValidationError that names the field and explains how to fix it."""
        return self.schema.check(self.spec.name, arguments)

    def subjects(self, arguments: object, workspace: Path) -> Sequence[Subject]:
        """Return no subjects, because the tool only computes and has no external effects."""
        del arguments, workspace
        return ()

    def grants(self, arguments: object) -> Sequence[str]:
        """Return a rule for the whole tool."""
        del arguments
        return (self.spec.name,)

    async def run(self, arguments: object, context: ToolContext) -> str:
        """Run the tool in the sandbox."""
        if self.place.sandbox is None:
            raise ToolUnavailableError(self.place.missing)
        seconds = context.timeout - GRACE
        finished = await run_python(
            self.place.sandbox,
            self.spec.source + _CALL,
            workspace=context.workspace,
            timeout=seconds,
            stdin=canonical(cast("JsonObject", arguments)),
            on_output=limited(context.progress),
        )
        return outcome(finished, seconds)


async def _checked(arguments: CreateTool, _context: ToolContext) -> str:
    """Reject code that can't become a tool. The error message explains how to correct the code."""
    wrong = list(complaints(arguments.code))
    try:
        shown = ArgumentSchema(arguments.parameters).shown
        if shown != arguments.parameters:
            wrong.append(f"`parameters`: not every model accepts this schema: send it as {canonical(shown)}")
    except BrokenSchema as error:
        wrong.append(f"`parameters`: {error}")
    if not wrong and not any(
        isinstance(node, ast.FunctionDef) and node.name == "run" for node in _body(arguments.code)
    ):
        wrong.append("the code has no `run` function at its top level: write `def run(…):`")
    if wrong:
        raise ToolValidationError("\n".join(["the tool was not created:", *(f"- {each}" for each in wrong)]))
    made = made_tool(arguments.model_dump())
    return f"You can call {made.name} from your next turn on (code {short_digest(made.source)})."


def _body(code: str) -> list[ast.stmt]:
    return ast.parse(code).body
