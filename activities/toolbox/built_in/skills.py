"""The tools of a run with skills: load_skill, read_skill_resource, run_skill_script, and scripts that are registered as
tools.

The skills are pinned in the run's spec and passed with each call (`ToolContext.skill`). If a skill's files have changed
since the run started, reading the skill returns a warning, and its scripts don't run.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

from pydantic import Field

from loom.activities.ports import Tool, ToolContext, ToolOutput, ToolSet
from loom.activities.toolbox.argument_schema import ArgumentSchema
from loom.activities.toolbox.built_in import skill_files
from loom.activities.toolbox.built_in.files import ReadFile
from loom.activities.toolbox.built_in.shell import (
    GRACE,
    KEPT,
    OUTPUT_LIMIT,
    Sandbox,
    Timeout,
    limited,
    outcome,
    seconds_for,
)
from loom.activities.toolbox.built_in.skill_content import changed_since, content, missing, resource
from loom.activities.toolbox.function_tool import Arguments, FunctionTool, tool_spec
from loom.activities.toolbox.tool_schemas import with_own_names
from loom.domain.core.errors import ToolUnavailableError, ToolValidationError
from loom.domain.core.messages import JsonObject, canonical
from loom.domain.core.tool_calls import Effect, Scope, ToolSpec, Verdict
from loom.domain.permissions.subjects import Subject
from loom.domain.skills.catalog import COMPILED, LOAD_SKILL, READ_RESOURCE, RUN_SCRIPT, SKILL_TOOLS, SkillUse

CONTENT_LIMIT: Final = 60_000
"""Maximum number of characters in a skill's instructions and its resource list. The resource list has its own token
limit.
"""
_NAME: Final = "Skill"


class LoadSkill(Arguments):
    """Arguments of load_skill."""

    name: str


class ReadResource(Arguments):
    """Arguments of read_skill_resource."""

    skill: str
    path: str
    offset: int = Field(default=1, ge=1, description="First line")
    limit: int = Field(default=2000, ge=1, description="Lines")


class RunScript(Arguments):
    """Arguments of run_skill_script."""

    skill: str
    script: str = Field(description="Such as scripts/check.py")
    arguments: tuple[str, ...] = Field(default=(), max_length=100, description="Words of its command line")
    stdin: str = Field(default="", max_length=1_000_000)
    timeout: Timeout = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SkillTools:
    """Creates the tools of runs with skills."""

    sandbox: Sandbox | None
    missing: str = "there is no sandbox"
    """Explains how to set up a sandbox if there is none."""
    timeout: float = 120.0
    note_of_missing: Callable[[str, Path], Awaitable[str]]
    """Returns a note for the model about what the skill in this folder requires and commands in this workspace don't
    have, or an empty string.
    """

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools of every run with skills. In a run's spec, these tools list the run's own skills."""
        return (self._load(), self._read(), self._run())

    def added_to(self, box: ToolSet, specs: Iterable[ToolSpec]) -> ToolSet:
        """Return the tool set plus the skill tools in these specs, as pinned to the run."""
        mine = {spec.name: made for spec in specs if (made := self._as_pinned(box, spec)) is not None}
        return {**box, **mine} if mine else box

    def _as_pinned(self, box: ToolSet, spec: ToolSpec) -> Tool | None:
        if spec.name.startswith(COMPILED):
            return ScriptTool(spec=spec, schema=ArgumentSchema(with_own_names(spec.parameters)), place=self)
        tool = box.get(spec.name) if spec.name in SKILL_TOOLS else None
        return None if tool is None else PinnedTool(spec=spec, schema=ArgumentSchema(spec.parameters), tool=tool)

    async def script(
        self, script: str, context: ToolContext, *, seconds: float, stdin: str, arguments: Sequence[str] = ()
    ) -> str:
        """Run a script from the call's skill in the workspace, with the skill's folder mounted read-only."""
        if self.sandbox is None:
            raise ToolUnavailableError(self.missing)
        use = skill_of(context)
        command = await asyncio.to_thread(_command, use, script, self.sandbox.python)
        finished = await self.sandbox.run(
            [*command, *arguments],
            workspace=context.workspace,
            timeout=seconds,
            max_output=KEPT,
            on_output=limited(context.progress),
            stdin=stdin.encode(),
            readable=[Path(use.root)],
        )
        return outcome(finished, seconds)

    def _load(self) -> Tool:
        description = "Load a skill: its instructions, and the names of its files."
        spec = tool_spec(
            LOAD_SKILL, description, LoadSkill, effect=Effect.READ, scope=Scope.CONTEXT, declared=Verdict.ALLOW
        )

        async def run(_arguments: LoadSkill, context: ToolContext) -> str | ToolOutput:
            use = skill_of(context)
            if use.is_active:
                return f"The skill {use.name} is active already: its instructions are in this conversation."
            loaded = await asyncio.to_thread(content, use)
            note = await self.note_of_missing(use.root, context.workspace)
            return replace(loaded, text=f"{loaded.text}\n{note}") if note else loaded

        return FunctionTool(
            spec=spec,
            arguments=LoadSkill,
            function=run,
            touches=lambda arguments, _: (Subject(text=arguments.name),),
            granted=lambda arguments: (f"{LOAD_SKILL}({arguments.name})",),
            max_output=CONTENT_LIMIT,
        )

    def _read(self) -> Tool:
        description = "Read a file of a skill, with line numbers."
        spec = tool_spec(
            READ_RESOURCE, description, ReadResource, effect=Effect.READ, scope=Scope.CONTEXT, declared=Verdict.ALLOW
        )

        async def run(arguments: ReadResource, context: ToolContext) -> str | ToolOutput:
            asked = ReadFile(path=arguments.path, offset=arguments.offset, limit=arguments.limit)
            return await asyncio.to_thread(resource, skill_of(context), asked)

        return FunctionTool(
            spec=spec,
            arguments=ReadResource,
            function=run,
            touches=lambda arguments, _: (Subject(text=f"{arguments.skill}/{arguments.path}"),),
        )

    def _run(self) -> Tool:
        description = "Run a script of a skill in the workspace, sandboxed."
        spec = tool_spec(
            RUN_SCRIPT,
            description,
            RunScript,
            effect=Effect.ONCE,
            timeout=self.timeout + GRACE,
            scope=Scope.SYSTEM,
            declared=Verdict.ASK,
        )

        async def run(arguments: RunScript, context: ToolContext) -> str:
            seconds = seconds_for(arguments.timeout, context)
            return await self.script(
                arguments.script, context, seconds=seconds, stdin=arguments.stdin, arguments=arguments.arguments
            )

        return FunctionTool(
            spec=spec,
            arguments=RunScript,
            function=run,
            touches=lambda arguments, _: (Subject(text=f"{arguments.skill}/{arguments.script}"),),
            granted=lambda arguments: (f"{RUN_SCRIPT}({arguments.skill}/{arguments.script})",),
            missing=None if self.sandbox else self.missing,
            max_output=OUTPUT_LIMIT,
            grace=GRACE,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PinnedTool:
    """One of the three skill tools, pinned to a run. It accepts only the run's own skills."""

    spec: ToolSpec
    schema: ArgumentSchema
    tool: Tool

    @property
    def grace(self) -> float:
        """Extra seconds that the tool needs to stop its program after an agent's timeout."""
        return float(getattr(self.tool, "grace", 0.0))

    def is_available(self) -> str | None:
        """Return None if the tool can run on this worker. Otherwise, explain what is missing and how to fix it."""
        return self.tool.is_available()

    def parse(self, arguments: JsonObject) -> object:
        """Validate the arguments. Raises a ToolValidationError that names the field and explains how to fix it."""
        return self.tool.parse(self.schema.check(self.spec.name, arguments))

    def subjects(self, arguments: object, workspace: Path) -> Sequence[Subject]:
        """Return the subjects to match against permission patterns."""
        return self.tool.subjects(arguments, workspace)

    def grants(self, arguments: object) -> Sequence[str]:
        """Return the allow rules that are added if this call is approved for the rest of the run."""
        return self.tool.grants(arguments)

    async def run(self, arguments: object, context: ToolContext) -> str | ToolOutput:
        """Run the call."""
        return await self.tool.run(arguments, context)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptTool:
    """A skill's script that is a tool of the run. It reads JSON from standard input and prints the result to standard
    output.
    """

    spec: ToolSpec
    schema: ArgumentSchema
    place: SkillTools
    max_output: int = OUTPUT_LIMIT
    grace: float = GRACE

    def is_available(self) -> str | None:
        """Return None if the tool can run on this worker. Otherwise, explain what is missing and how to fix it."""
        return None if self.place.sandbox else self.place.missing

    def parse(self, arguments: JsonObject) -> JsonObject:
        """Validate the arguments. Raises a ToolValidationError that names the field and explains how to fix it."""
        return self.schema.check(self.spec.name, arguments)

    def subjects(self, arguments: object, workspace: Path) -> Sequence[Subject]:
        """Return no subjects, because only the script knows which resources it accesses."""
        del arguments, workspace
        return ()

    def grants(self, arguments: object) -> Sequence[str]:
        """Return a rule for the whole tool."""
        del arguments
        return (self.spec.name,)

    async def run(self, arguments: object, context: ToolContext) -> str:
        """Run the script in the sandbox."""
        given = canonical(cast("JsonObject", arguments))
        return await self.place.script(skill_of(context).script, context, seconds=context.timeout - GRACE, stdin=given)


def skill_of(context: ToolContext) -> SkillUse:
    """Return the call's skill. Raises ToolUnavailableError if the run has no skill with that name."""
    if context.skill is None:
        raise ToolUnavailableError("this run has no skill with that name: its prompt lists the available skills")
    return context.skill


def _command(use: SkillUse, script: str, python: str) -> tuple[str, ...]:
    """Return the command that runs a script. A known suffix determines the interpreter. Any other script must be
    executable. Raises a tool error if the script is missing, has changed or can't be run.
    """
    try:
        with skill_files.opened(use.root, script) as file:
            is_program = os.fstat(file.fileno()).st_mode & 0o111
        changed = changed_since(use)
    except OSError as error:
        raise ToolValidationError(missing(use, script, error)) from None
    if changed:
        raise ToolUnavailableError(f"nothing was run. {changed} Scripts run only if nothing has changed since then.")
    path = str(Path(use.root, *skill_files.parts_of(script)))
    if script.endswith(".py"):
        return (python, "-E", "-s", "-B", "-X", "utf8", path)
    if script.endswith((".sh", ".bash")):
        return ("bash", path)
    if is_program:
        return (path,)
    raise ToolValidationError(f"{script} is not a script: it does not end in .py or .sh, and it is not executable")
