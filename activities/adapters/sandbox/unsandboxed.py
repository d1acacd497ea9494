"""Run commands without isolation. This module is used only if the user has explicitly requested it."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Final

import psutil

from loom.activities.adapters.sandbox.command_environment import CommandEnvironment
from loom.activities.adapters.sandbox.processes import kill_group, supervise
from loom.activities.adapters.sandbox.sessions import Session, begin
from loom.activities.toolbox.built_in.shell import Finished, OpenedRepository
from loom.domain.core.errors import ToolExecutionError, ToolUnavailableError

_MARK: Final = "LOOM_COMMAND"


class Unsandboxed:
    """Runs commands with all of the worker user's permissions. It is used only if it is explicitly configured."""

    def __init__(self, environment: CommandEnvironment | None = None) -> None:
        self._environment = environment or CommandEnvironment()
        self.python = self._environment.python

    async def run(
        self,
        command: Sequence[str],
        *,
        workspace: Path,
        timeout: float,  # noqa: ASYNC109
        max_output: int,
        on_output: Callable[[str], None],
        stdin: bytes = b"",
        readable: Sequence[Path] = (),
        repository: OpenedRepository | None = None,
    ) -> Finished:
        """Run the command until it ends. Detached processes are identified by a marker in their environment."""
        del readable  # the command can read every file that the worker can read
        _require(workspace)
        self._environment.refuse_inside(workspace)
        if repository is not None:
            raise ToolUnavailableError("commands run without a sandbox here, so `.git` is writable: commit with bash")
        mark = token_hex(8)
        return await supervise(
            command,
            workspace=workspace,
            environment={**self._environment.variables(str(Path.home())), _MARK: mark},
            timeout=timeout,
            max_output=max_output,
            on_output=on_output,
            kill=partial(_kill_marked, mark=mark),
            stdin=stdin,
        )

    async def begin(self, program: Sequence[str], *, workspace: Path) -> Session:
        """Start a program that stays between calls."""
        _require(workspace)
        self._environment.refuse_inside(workspace)
        mark = token_hex(8)
        return await begin(
            program,
            ExitStack(),
            workspace=workspace,
            environment={**self._environment.variables(str(Path.home())), _MARK: mark},
            kill=partial(_kill_marked, mark=mark),
        )

    def places(self, workspace: Path) -> Sequence[str]:
        """Return nothing, because nothing is hidden from the command."""
        del workspace
        return ()


def _require(workspace: Path) -> None:
    if not workspace.is_absolute() or not workspace.is_dir():
        raise ToolExecutionError(f"the workspace {str(workspace)!r} is not a folder on this worker: nothing was run")


def _kill_marked(pid: int, mark: str) -> None:
    """Kill all of the command's processes, including detached ones. Repeat this, because new processes may start, and
    one that is just starting may not show its environment yet.
    """
    times_without = 0
    for _ in range(10):
        tree = _tree(pid)
        kill_group(pid)
        marked = [process for process in psutil.process_iter() if process.pid != os.getpid() and _has(process, mark)]
        for process in {*tree, *marked}:
            try:
                process.kill()
            except psutil.Error:
                continue
        times_without = 0 if marked else times_without + 1
        if times_without == 2:
            return


def _tree(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


def _has(process: psutil.Process, mark: str) -> bool:
    try:
        return bool(process.environ().get(_MARK) == mark)
    except (psutil.Error, OSError):
        return False
