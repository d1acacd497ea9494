"""bash: one shell command, in a sandbox."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from pydantic import Field, field_validator

from activities.ports import Tool, ToolContext
from activities.toolbox.function_tool import Arguments, FunctionTool, tool_spec
from loom_domain.errors import ToolExecutionError, ToolExecutionTimeout, ToolUnavailableError
from loom_domain.permissions import Subject
from loom_domain.tool_calls import Effect

OUTPUT_LIMIT: Final = 30_000
_LONGEST: Final = 600.0
_ROOM: Final = 300
"""Characters that the lines around the output may take."""

GRACE: Final = 10.0
"""Seconds beyond a command's own time limit, for stopping it and reading what it said."""

MAX_GRANTS: Final = 5

EXACT_ONLY: Final = frozenset(
    """
    sh bash zsh dash ksh ash fish csh tcsh busybox eval exec source . command builtin coproc trap alias hash
    node nodejs deno bun perl ruby php lua awk gawk mawk sed ed ex vi vim nvim emacs osascript tclsh expect
    env sudo doas su runuser setsid nohup timeout nice ionice chrt stdbuf flock watch parallel xargs find fd
    script strace ltrace gdb unshare nsenter chroot bwrap tmux screen at batch crontab systemctl service
    rm rmdir mv cp dd ln shred truncate tee install rsync tar unzip kill pkill killall chmod chown chgrp chattr
    mkfs mount umount reboot shutdown
    git svn hg gh curl wget http nc ncat socat telnet ssh scp sftp ftp
    docker podman kubectl helm terraform ansible aws gcloud az
    npm npx pnpm yarn pip pip3 pipx uv uvx poetry conda cargo go rustup gem bundle mvn gradle apt apt-get dnf yum brew
    make cmake ninja just tox nox psql mysql sqlite3 redis-cli mongosh
    """.split()  # noqa: SIM905 - as a list it would take three screens
)
"""Programs that run others, destroy, or reach the network: approved word for word, never by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """How a command ended."""

    exit_code: int
    output: str
    timed_out: bool = False
    truncated: bool = False


class Sandbox(Protocol):
    """Somewhere to run a command so that it can do no harm outside the workspace."""

    async def run(
        self,
        command: Sequence[str],
        *,
        workspace: Path,
        timeout: float,  # noqa: ASYNC109 - the command's own limit; what it said until then is the answer
        max_output: int,
        on_output: Callable[[str], None],
    ) -> Finished:
        """Run it to its end; when time is up or the caller is cancelled, kill everything that it started."""
        ...


class ShellParser(Protocol):
    """Reads a shell command without running it."""

    def parse(self, command: str) -> Sequence[Subject]:
        """Every command inside, in order."""
        ...


class Bash(Arguments):
    """Arguments of bash."""

    command: str = Field(max_length=100_000, description="Shell command")
    timeout: float | None = Field(
        default=None, gt=0, le=_LONGEST, description=f"Seconds until it is stopped, at most {_LONGEST:g}"
    )

    @field_validator("command")
    @classmethod
    def _runnable(cls, command: str) -> str:
        if not command.strip() or "\0" in command:
            raise ValueError("it is empty or has a null byte in it")
        return command


def shell_tool(sandbox: Sandbox | None, parser: ShellParser, timeout: float, missing: str) -> Tool:
    """The bash tool; without a sandbox it is there and says what to do."""

    async def run(arguments: Bash, context: ToolContext) -> str:
        if sandbox is None:
            raise ToolUnavailableError(missing)
        seconds = arguments.timeout or timeout
        finished = await sandbox.run(
            ["bash", "-c", arguments.command],
            workspace=context.workspace,
            timeout=seconds,
            max_output=OUTPUT_LIMIT - _ROOM,
            on_output=_limited(context.progress),
        )
        return _outcome(finished, seconds)

    return FunctionTool(
        spec=tool_spec(
            "bash",
            "Run a shell command in the workspace. Every call is a new shell; what it leaves running ends with it.",
            Bash,
            effect=Effect.ONCE,
            timeout=timeout + GRACE,
        ),
        arguments=Bash,
        function=run,
        touches=lambda arguments, _workspace: parser.parse(arguments.command),
        granted=lambda arguments: grants_of(parser.parse(arguments.command)),
        missing=missing if sandbox is None else None,
        max_output=OUTPUT_LIMIT,
    )


def _outcome(finished: Finished, seconds: float) -> str:
    output = finished.output.rstrip("\n")
    if finished.timed_out:
        raise ToolExecutionTimeout(
            f"the command was stopped after {seconds:g} s; give a longer `timeout` (at most {_LONGEST:g}) or do less "
            f"at once. Until then it said:\n{output or '(nothing)'}"
        )
    if finished.exit_code != 0:
        raise ToolExecutionError(f"exit code {finished.exit_code}\n{output or '(no output)'}")
    return output


def _limited(progress: Callable[[str], None]) -> Callable[[str], None]:
    """Progress up to the length that the result may have: a flood is of no use on the live stream."""
    room = OUTPUT_LIMIT

    def tell(text: str) -> None:
        nonlocal room
        if room > 0 and text:
            progress(text[:room])
            room -= len(text)

    return tell


def grants_of(commands: Sequence[Subject]) -> tuple[str, ...]:
    """Allow rules for these commands: harmless programs by name, others word for word; none when one cannot be told."""
    texts = list(dict.fromkeys(command.text for command in commands))
    rules = [_rule(text) for text in texts]
    if any(command.opaque for command in commands) or "" in rules:
        return ()
    return tuple(dict.fromkeys(rules))[:MAX_GRANTS]


def _rule(text: str) -> str:
    """One rule; empty when none can be written, since rules have no way to mean a literal `*`."""
    program = text.split(maxsplit=1)[0]
    is_plain = re.fullmatch(r"[A-Za-z0-9][\w.+-]*", program) is not None
    if is_plain and program not in EXACT_ONLY and not program.startswith("python"):
        return f"bash({program}:*)"
    return "" if "*" in text else f"bash({text})"
