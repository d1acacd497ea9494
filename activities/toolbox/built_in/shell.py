"""`bash`: run one shell command in a sandbox."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Protocol

from pydantic import AfterValidator, Field

from loom.activities.ports import MAX_GRANTS, Tool, ToolContext
from loom.activities.toolbox.built_in.shell_files import with_files
from loom.activities.toolbox.function_tool import Arguments, FunctionTool, tool_spec
from loom.domain.core.errors import ToolExecutionError, ToolExecutionTimeout, ToolUnavailableError
from loom.domain.core.tool_calls import Effect, Scope
from loom.domain.permissions.patterns import escaped
from loom.domain.permissions.subjects import Subject

OUTPUT_LIMIT: Final = 30_000
_LONGEST: Final = 600
KEPT: Final = 2_000_000
"""Maximum number of characters to store from a command's output. The start and the end are kept."""

GRACE: Final = 10.0
"""Extra seconds after a command's own timeout, for stopping the command and reading its output."""

BY_NAME: Final = frozenset(
    """
    ls cat head tail wc grep egrep fgrep nl tac rev cut tr paste fold comm join cmp diff echo printf pwd true false test
    basename dirname realpath readlink stat du df date whoami id uname which type sleep seq expr nproc arch uptime free
    ps md5sum sha1sum sha256sum sha512sum cksum od hexdump strings jq
    """.split()  # noqa: SIM905 - as a list it would take a screen
)
"""Programs that only read and print, whatever their arguments are. A person can approve these programs by name. For
other programs, a person can approve only the exact command.
"""


_NOT_WRITABLE: Final = ("Read-only file system", "Permission denied")
"""What Git prints if a command has to write to `.git`."""
_TO_COMMIT: Final = (
    "(In this sandbox, .git is read-only. To commit, call the tool git_commit, which also stages the files. For other "
    "changes to the repository, such as branches, ask a person.)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """The outcome of a command."""

    exit_code: int
    output: str
    timed_out: bool = False
    truncated: bool = False
    limit: str = ""
    """Why the command was stopped, such as the limit that it reached, and how to deal with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenedRepository:
    """A Git repository that a command may write to. Only trusted commands get one."""

    folder: Path
    """The `.git` folder in the workspace."""
    settings: str
    """The settings that Git sees instead of the repository's own."""


class Sandbox(Protocol):
    """Runs commands and prevents them from doing harm outside the workspace."""

    python: str
    """The interpreter that runs Python programs in this sandbox."""

    async def run(
        self,
        command: Sequence[str],
        *,
        workspace: Path,
        timeout: float,  # noqa: ASYNC109 - the command's own timeout: on timeout, the output so far is returned
        max_output: int,
        on_output: Callable[[str], None],
        stdin: bytes = b"",
        readable: Sequence[Path] = (),
        repository: OpenedRepository | None = None,
    ) -> Finished:
        """Run the command to completion. On timeout, at a limit or on cancellation, kill the command and all processes
        that it started.

        `readable` contains folders that the command may read, even if they are outside the workspace. In `repository`,
        the command may write objects, references and the index. Its settings and hooks stay out of reach.
        """
        ...

    async def begin(self, program: Sequence[str], *, workspace: Path) -> "Session":
        """Start a program that stays between calls. Its last argument is the number of the pipe for its replies."""
        ...

    def places(self, workspace: Path) -> Sequence[str]:
        """Return what a program that starts now would see and could write. If this changes, a program that runs since
        before should end, because it isn't kept from the new places.
        """
        ...


class Session(Protocol):
    """A program in the sandbox that stays between calls. It reads one command after the other."""

    @property
    def has_ended(self) -> bool:
        """Whether the program no longer runs."""
        ...

    async def call(
        self,
        command: bytes,
        *,
        timeout: float,  # noqa: ASYNC109 - as for Sandbox
        max_output: int,
        on_output: Callable[[str], None],
    ) -> Finished:
        """Carry out one command. If it doesn't end in time, exceeds a limit or is canceled, the program ends with all
        processes that it started.
        """
        ...

    async def close(self) -> None:
        """End the program and all processes that it started."""
        ...


class ShellParser(Protocol):
    """Analyzes a shell command without running it."""

    def parse(self, command: str) -> Sequence[Subject]:
        """Return every command in the shell command, in order."""
        ...


def _runnable(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise ValueError("it is empty or contains a null byte")
    return text


Runnable = Annotated[str, AfterValidator(_runnable)]
"""Text that can be executed."""


Timeout = Annotated[float | None, Field(gt=0, le=_LONGEST, description=f"Seconds, at most {_LONGEST}")]
"""The maximum duration of the program in the sandbox, as requested by the model."""


class Bash(Arguments):
    """Arguments of bash."""

    command: Runnable = Field(max_length=100_000)
    timeout: Timeout = None


def shell_tool(sandbox: Sandbox | None, parser: ShellParser, timeout: float, missing: str) -> Tool:
    """Return the bash tool. Without a sandbox, the tool explains how to set one up."""

    async def run(arguments: Bash, context: ToolContext) -> str:
        if sandbox is None:
            raise ToolUnavailableError(missing)
        seconds = seconds_for(arguments.timeout, context)
        finished = await sandbox.run(
            ["bash", "-c", arguments.command],
            workspace=context.workspace,
            timeout=seconds,
            max_output=KEPT,
            on_output=limited(context.progress),
        )
        return outcome(finished, seconds)

    return FunctionTool(
        spec=tool_spec(
            "bash",
            "Run a shell command in the workspace. Each call has its own shell, and its processes end with it.",
            Bash,
            effect=Effect.ONCE,
            timeout=timeout + GRACE,
            scope=Scope.SYSTEM,
        ),
        arguments=Bash,
        function=run,
        touches=lambda arguments, workspace: with_files(parser.parse(arguments.command), workspace, str(Path.home())),
        granted=lambda arguments: grants_of(parser.parse(arguments.command)),
        missing=missing if sandbox is None else None,
        max_output=OUTPUT_LIMIT,
        grace=GRACE,
        is_sandboxed=getattr(sandbox, "is_isolated", False),
    )


def seconds_for(asked: float | None, context: ToolContext) -> float:
    """Return how many seconds a command may run: as many as its call asks for, but not more than the call has."""
    most = context.timeout - GRACE
    return most if asked is None else min(asked, most)


def outcome(finished: Finished, seconds: float) -> str:
    """Return the output of a command. Raises the tool's error if the command failed or was stopped."""
    output = finished.output.rstrip("\n")
    if finished.timed_out:
        raise ToolExecutionTimeout(
            f"the command was stopped after {seconds:g} s; set a longer `timeout` (at most {_LONGEST:g}) or do less "
            f"in one call. Its output until then:\n{output or '(nothing)'}"
        )
    if finished.exit_code != 0:
        why = f": {finished.limit}" if finished.limit else ""
        advice = f"\n{_TO_COMMIT}" if _needs_git(output) else ""
        raise ToolExecutionError(f"exit code {finished.exit_code}{why}\n{output or '(no output)'}{advice}")
    return output


def _needs_git(output: str) -> bool:
    return any(".git" in line and any(said in line for said in _NOT_WRITABLE) for line in output.splitlines())


def limited(progress: Callable[[str], None]) -> Callable[[str], None]:
    """Limit progress to the maximum length of a result, because longer output isn't useful on the live stream."""
    room = OUTPUT_LIMIT

    def tell(text: str) -> None:
        nonlocal room
        if room > 0 and text:
            progress(text[:room])
            room -= len(text)

    return tell


def grants_of(commands: Sequence[Subject]) -> tuple[str, ...]:
    """Return allow rules for these commands. The rules name programs that only read and print. For other programs, they
    name the exact command. If one of the commands can't be expressed as a rule, return no rules.
    """
    needed = [command for command in commands if not command.passive]
    rules = tuple(dict.fromkeys(_rule(command) for command in needed))
    return () if None in rules else tuple(rule for rule in rules if rule)[:MAX_GRANTS]


def _rule(command: Subject) -> str | None:
    """Return the rule that allows a command. An exact rule can't express a computed word or a command's input."""
    if command.opaque:
        return None
    program = command.text.partition(" ")[0]
    if program in BY_NAME:
        return f"bash({program}:*)"
    return None if None in command.words or command.reads_input else f"bash({escaped(command.text)})"
