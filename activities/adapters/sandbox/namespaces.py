"""Run tools' programs in Linux namespaces, which bubblewrap creates.

Besides its workspace, a command sees the system and the folders that the settings open, and nothing else of the host.
In the sandbox, only parts of the workspace are writable, and there is no network. Processes run in their own PID
namespace, which ends when its first process ends. All of `/proc` is read-only. Otherwise, a process with root's user id
could write to `/proc/sys` even without capabilities, and thereby run programs on the host. `--die-with-parent` kills
all processes when the worker dies. The kernel regards the *thread* that started a process as the parent of that
process. Commands must therefore be started from the event loop's thread. Asyncio does this.

The first process is a shell (`--as-pid-1`). Bubblewrap's own first process closes its files, including the host's
`/proc`, only after it has started the command. A fast command could therefore access the host through `/proc/1/fd`.
"""

import asyncio
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Final

from loom.activities.adapters.sandbox import project_environments
from loom.activities.adapters.sandbox.command_environment import CommandEnvironment
from loom.activities.adapters.sandbox.hidden_paths import (
    SYSTEM,
    TEMPORARIES,
    TEMPORARY,
    PrivateSettings,
    hidden_folders,
    interpreter_folders,
    is_visible,
    listening_sockets,
    outside_the_system,
    system_mounts,
)
from loom.activities.adapters.sandbox.processes import kill_group, supervise
from loom.activities.adapters.sandbox.project_environments import (
    UnseenPython,
    named_environments,
    unseen_pythons,
)
from loom.activities.adapters.sandbox.protected_paths import Mounts, mounted, open_repository
from loom.activities.adapters.sandbox.repositories import Repositories
from loom.activities.adapters.sandbox.resource_limits import counts_ids_per_namespace, hint, limiting
from loom.activities.adapters.sandbox.sessions import Session, begin
from loom.activities.adapters.sandbox.system_calls import system_call_filter
from loom.activities.adapters.sandbox.watchdog import FIRST, Watchdog, free_space
from loom.activities.toolbox.built_in.shell import Finished, OpenedRepository
from loom.domain.permissions.obeyed import NO_FILES, WorkerFiles
from loom.domain.tools.sandbox_limits import Limits

_NAMESPACES: Final = (
    *("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"),
    *("--new-session", "--die-with-parent", "--as-pid-1"),
)
_NOTHING: Final = "/dev/null"


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedSandbox:
    """A sandbox that is ready for one command."""

    words: Sequence[str]
    """The command-line words before the command. They include the words that set the limits."""
    mounts: Sequence[str]
    """The words that determine what the command sees and may write."""
    descriptors: Sequence[int]
    """File descriptors to pass to the process."""
    temporary: Sequence[Path]
    """In-memory folders in the sandbox."""
    report: int
    """The pipe that receives the id of the first process. Bubblewrap writes the id in one or more chunks."""
    told: bytearray = field(default_factory=bytearray)

    def first_process(self) -> int | None:
        """Return the id of the first process, or None if it isn't known yet."""
        with suppress(BlockingIOError):
            self.told.extend(os.read(self.report, 4096))
        found = re.search(rb'"child-pid": (\d+)\D', self.told)
        return int(found[1]) if found else None


class Bubblewrap:
    """Runs commands in Linux namespaces, within limits."""

    is_isolated: ClassVar[bool] = True
    """Commands can't write the worker's own files."""

    def __init__(
        self,
        binary: str,
        hidden: Sequence[Path] = (),
        limits: Limits | None = None,
        opened: Sequence[Path] = (),
        environment: CommandEnvironment | None = None,
        *,
        obeyed: Callable[[str], WorkerFiles] | None = None,
    ) -> None:
        """`hidden` lists additional folders and files that commands must not see, such as Loom's own state. `opened`
        lists folders outside the workspace that commands may read. `obeyed` returns the files that the worker reads,
        which commands must not change.
        """
        self._environment = environment or CommandEnvironment()
        self.python = self._environment.python
        self._binary = binary
        self._further = hidden
        self._private = PrivateSettings()
        self._opened = (*interpreter_folders(), *opened, *outside_the_system(self._environment.folders))
        self._limits = limits or Limits()
        self._repositories = Repositories()
        self._obeyed = obeyed
        self._filter = system_call_filter()

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
        """Run the command until it ends. When the first process of its namespace ends, all other processes end too,
        including detached processes.
        """
        self._environment.refuse_inside(workspace)
        with self.prepared(workspace, readable, repository) as prepared:
            before = free_space(workspace)

            async def watch() -> str:
                first = await _wait_for_first_process(prepared)
                return await Watchdog(
                    first=first,
                    workspace=workspace,
                    before=before,
                    temporary=prepared.temporary,
                    limits=self._limits,
                    seconds=timeout,
                ).wait_for_excess()

            finished = await supervise(
                [*prepared.words, *command],
                workspace=workspace,
                environment=self._environment.variables(str(TEMPORARY)),
                timeout=timeout,
                max_output=max_output,
                on_output=on_output,
                kill=kill_group,
                stdin=stdin,
                pass_fds=prepared.descriptors,
                watch=watch,
            )
        if finished.limit or finished.timed_out:
            return finished
        why = (
            hint(finished.exit_code, finished.output, self._limits)
            or self._repositories.hint(workspace, finished.output)
            or project_environments.hint(workspace, self._shown, finished.exit_code, finished.output)
        )
        return replace(finished, limit=why)

    async def begin(self, program: Sequence[str], *, workspace: Path) -> Session:
        """Start a program that stays between calls."""
        self._environment.refuse_inside(workspace)
        stack = ExitStack()
        prepared = stack.enter_context(self.prepared(workspace))

        async def watch(timeout: float) -> str:  # noqa: ASYNC109 - for the limits
            first = await _wait_for_first_process(prepared)
            watchdog = Watchdog(
                first=first,
                workspace=workspace,
                before=free_space(workspace),
                temporary=prepared.temporary,
                limits=self._limits,
                seconds=timeout,
            )
            return await replace(watchdog, used=watchdog.processor_time()).wait_for_excess()

        return await begin(
            [*prepared.words, *program],
            stack,
            workspace=workspace,
            environment=self._environment.variables(str(TEMPORARY)),
            kill=kill_group,
            pass_fds=prepared.descriptors,
            watch=watch,
        )

    def unseen_pythons(self, workspace: Path) -> Sequence[UnseenPython]:
        """Return the workspace's virtual environments whose programs commands can't see."""
        return list(unseen_pythons(workspace, self._shown, named_environments(workspace)))

    @property
    def _shown(self) -> Sequence[Path]:
        return (*map(Path, SYSTEM), *self._opened)

    def places(self, workspace: Path) -> Sequence[str]:
        """Return the mounts of a program that would start now. Numbers are left out, because they are descriptors."""
        with self.prepared(workspace) as prepared:
            return [word for word in prepared.mounts if not word.isdigit()]

    @contextmanager
    def prepared(
        self, workspace: Path, readable: Sequence[Path] = (), repository: OpenedRepository | None = None
    ) -> Iterator[PreparedSandbox]:
        """Prepare the sandbox for one command. The result is valid until the end of the block."""
        hidden = hidden_folders(
            self._further
        )  # not cached, because Loom's own state may have been created since the last command
        visible = self._shown
        outside = self._covered(hidden, visible, workspace)
        obeyed = self._obeyed(str(workspace)) if self._obeyed else NO_FILES
        inside = [folder for folder in hidden if folder.is_relative_to(workspace) and folder != workspace]
        with (
            mounted(workspace, self._repositories, readable, _above(inside, workspace), obeyed) as mounts,
            ExitStack() as stack,
        ):
            report, told = _pipe(stack)
            mounts.descriptors.append(told)
            filters = () if self._filter is None else ("--seccomp", str(_holding(self._filter, stack, mounts)))
            if repository is not None:
                settings = _holding(repository.settings.encode(), stack, mounts)
                open_repository(workspace, repository.folder, settings, mounts, stack)
            words = [
                *(self._binary, *_NAMESPACES, "--info-fd", str(told), *filters),
                *self._system(),
                *self._places(workspace, mounts, outside, inside),
                *self._masked(visible, (*TEMPORARIES, *outside, *inside), workspace),
                *("--remount-ro", "/"),
                *("--chdir", str(workspace), "--"),
            ]
            yield PreparedSandbox(
                words=[*words, *limiting(self._limits, _kernel(stack, mounts))],
                mounts=words,
                descriptors=mounts.descriptors,
                temporary=TEMPORARIES,
                report=report,
            )

    def _covered(self, hidden: Sequence[Path], visible: Sequence[Path], workspace: Path) -> list[Path]:
        """Return the hidden folders that a command could otherwise see outside the workspace. A folder that is opened
        by its own name is visible.
        """
        own = [folder.resolve() for folder in self._further]
        return [
            folder
            for folder in hidden
            if not folder.is_relative_to(workspace)
            and any(folder.is_relative_to(each) for each in visible)
            and (folder not in self._opened or folder in own)
        ]

    def _system(self) -> Sequence[str]:
        sized = ("--perms", "1777", "--size", str(self._limits.temporary), "--tmpfs")
        return (
            *system_mounts(),
            *("--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev"),
            *(word for folder in TEMPORARIES for word in (*sized, str(folder))),
            *("--remount-ro", "/dev"),
        )

    def _places(
        self, workspace: Path, mounts: Mounts, outside: Sequence[Path], inside: Sequence[Path]
    ) -> Iterator[str]:
        """Return the mounts in order. The order matters, because later mounts cover earlier mounts. An opened folder
        may be inside a hidden folder or contain one, and so may the workspace.
        """
        for folder in sorted({*self._opened, *outside}):
            yield from _empty(folder) if folder in outside else ("--ro-bind-try", str(folder), str(folder))
        yield from mounts.words
        for folder in dict.fromkeys((*mounts.emptied, *inside)):
            yield from _empty(folder)
        # Mount skills last, because they may be inside emptied folders.
        yield from mounts.readable
        for folder in dict.fromkeys((*outside, *mounts.emptied, *inside)):
            yield from ("--remount-ro", str(folder))

    def _masked(self, visible: Sequence[Path], covered: Sequence[Path], workspace: Path) -> Iterator[str]:
        """Return the mounts that hide private settings and other services' sockets, which are in visible folders."""
        own = [path.resolve() for path in self._further if path.is_file()]
        for path in (*self._private.present(), *own):
            if is_visible(path, visible, (*covered, workspace)):
                hides = (
                    (*_empty(path), "--remount-ro", str(path)) if path.is_dir() else ("--ro-bind", _NOTHING, str(path))
                )
                yield from hides
        for name in listening_sockets(visible, covered, workspace):
            yield from ("--ro-bind", _NOTHING, name)


def _empty(folder: Path) -> Sequence[str]:
    return "--size", "4096", "--tmpfs", str(folder)


def _above(hidden: Sequence[Path], workspace: Path) -> Sequence[Path]:
    """Return the workspace folders that contain these folders, parent folders first."""
    found = {folder for each in hidden for folder in each.parents if folder.is_relative_to(workspace)}
    return sorted(found - {workspace})


def _pipe(stack: ExitStack) -> tuple[int, int]:
    """Return both ends of a new pipe. Its read end is non-blocking."""
    ends = os.pipe()
    for end in ends:
        stack.callback(os.close, end)
    os.set_blocking(ends[0], False)
    return ends


def _kernel(stack: ExitStack, mounts: Mounts) -> int | None:
    """Return a descriptor for setting the sandbox's own maximum process id, or None if this would affect the whole
    machine.
    """
    if not counts_ids_per_namespace(os.uname().release):
        return None
    found = os.open("/proc/sys/kernel", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stack.callback(os.close, found)
    mounts.descriptors.append(found)
    return found


def _holding(data: bytes, stack: ExitStack, mounts: Mounts) -> int:
    """Put `data` into a pipe, and return the descriptor of its read end. The data is small enough for the pipe's
    buffer.
    """
    reading, writing = os.pipe()
    stack.callback(os.close, reading)
    os.write(writing, data)
    os.close(writing)
    mounts.descriptors.append(reading)
    return reading


async def _wait_for_first_process(prepared: PreparedSandbox) -> int:
    """Wait briefly for the id of the first process. Most commands end before the wait is over."""
    while True:
        await asyncio.sleep(FIRST)
        if (first := prepared.first_process()) is not None:
            return first
