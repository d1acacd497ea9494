"""`bash`: run one shell command in a sandbox."""

import re
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
_LONGEST: Final = 600.0
KEPT: Final = 2_000_000
"""Maximum number of characters to store from a command's output. The start and the end are kept."""

GRACE: Final = 10.0
"""Extra seconds after a command's own timeout, for stopping the command and reading its output."""

EXACT_ONLY: Final = frozenset(
    """
    sh bash zsh dash ksh ash fish csh tcsh busybox eval exec source . command builtin coproc trap alias hash
    node nodejs deno bun perl ruby php lua awk gawk mawk sed ed ex vi vim nvim emacs osascript tclsh expect
    env sudo doas su runuser setsid nohup timeout nice ionice chrt stdbuf flock watch parallel xargs find fd
    script strace ltrace gdb unshare nsenter chroot bwrap tmux screen at batch crontab systemctl service
    rm rmdir mv cp dd ln shred truncate tee install rsync tar unzip kill pkill killall chmod chown chgrp chattr
    mkfs mount umount reboot shutdown
    cd pushd git svn hg gh curl wget http nc ncat socat telnet ssh scp sftp ftp
    docker podman kubectl helm terraform ansible aws gcloud az
    npm npx pnpm yarn pip pip3 pipx uv uvx poetry conda cargo go rustup gem bundle mvn gradle apt apt-get dnf yum brew
    make cmake ninja just tox nox psql mysql sqlite3 redis-cli mongosh
    """.split()  # noqa: SIM905 - as a list it would take three screens
)
"""Programs that run other programs, destroy data, or use the network. A person can approve only exact commands with
these programs, not a whole program by name.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """The outcome of a command."""

    exit_code: int
    output: str
    timed_out: bool = False
    truncated: bool = False
    limit: str = ""
    """The limit that the command reached, and how to deal with it."""


class Sandbox(Protocol):
    """Runs commands and prevents them from doing harm outside the workspace."""

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
    ) -> Finished:
        """Run the command to completion. On timeout, at a limit or on cancellation, kill the command and all processes
        that it started.

        `readable` contains folders that the command may read, even if they are outside the workspace.
        """
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


Timeout = Annotated[
    float | None, Field(gt=0, le=_LONGEST, description=f"Seconds until it is stopped, at most {_LONGEST:g}")
]
"""The maximum duration of the program in the sandbox, as requested by the model."""


class Bash(Arguments):
    """Arguments of bash."""

    command: Runnable = Field(max_length=100_000, description="Shell command")
    timeout: Timeout = None


def shell_tool(sandbox: Sandbox | None, parser: ShellParser, timeout: float, missing: str) -> Tool:
    """Return the bash tool. Without a sandbox, the tool explains how to set one up."""

    async def run(arguments: Bash, context: ToolContext) -> str:
        if sandbox is None:
            raise ToolUnavailableError(missing)
        seconds = arguments.timeout or timeout
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
            "Run a shell command in the workspace. Every call starts a new shell, and its processes end with it.",
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
    )


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
        raise ToolExecutionError(f"exit code {finished.exit_code}{why}\n{output or '(no output)'}")
    return output


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
    """Return allow rules for these commands. Harmless programs are allowed by name, and other programs only as exact
    commands. If one of the commands can't be expressed as a rule, return no rules.
    """
    if any(command.opaque for command in commands):
        return ()
    rules = [_rule(command.text) for command in commands if not command.passive]
    return tuple(dict.fromkeys(rules))[:MAX_GRANTS]


def _rule(text: str) -> str:
    program = text.split(maxsplit=1)[0]
    is_plain = re.fullmatch(r"[A-Za-z0-9][\w.+-]*", program) is not None
    if is_plain and program not in EXACT_ONLY and not program.startswith("python"):
        return f"bash({program}:*)"
    return f"bash({escaped(text)})"
