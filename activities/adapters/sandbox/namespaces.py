"""Run the programs of tools in Linux namespaces, which bubblewrap creates.

Inside, only the workspace is writable, and not all of it. Homes, runtime sockets and host secrets are hidden. There is
no network. Processes run in a namespace of their own that ends with its first process. All of `/proc` is read-only,
because the kernel lets root's user id write to `/proc/sys` even without capabilities, and from there run programs on
the host. `--die-with-parent` ends everything with the worker. For the kernel, the parent is the *thread* that started
the process, so start commands from the event loop's thread only, as asyncio does.

The first process is a shell (`--as-pid-1`), because bubblewrap's own closes its files, including the host's `/proc`,
only after it has started the command: a fast command could reach the host through `/proc/1/fd`.
"""

import asyncio
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from loom.activities.adapters.sandbox.hidden_paths import (
    TEMPORARIES,
    TEMPORARY,
    hidden_files,
    hidden_folders,
    listening_sockets,
)
from loom.activities.adapters.sandbox.processes import clean_environment, kill_group, supervise
from loom.activities.adapters.sandbox.protected_paths import Mounts, mounted
from loom.activities.adapters.sandbox.repositories import Repositories
from loom.activities.adapters.sandbox.resource_limits import counts_ids_per_namespace, hint, limiting
from loom.activities.adapters.sandbox.system_calls import system_call_filter
from loom.activities.adapters.sandbox.watchdog import FIRST, Watchdog, free_space
from loom.activities.toolbox.built_in.shell import Finished
from loom.domain.tools.sandbox_limits import Limits

_NAMESPACES: Final = (
    *("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"),
    *("--new-session", "--die-with-parent", "--as-pid-1"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedSandbox:
    """A sandbox that is ready for one command."""

    words: Sequence[str]
    """The words before the command, including limits."""
    descriptors: Sequence[int]
    """File descriptors to pass on."""
    temporary: Sequence[Path]
    """Folders inside that are kept in memory."""
    report: int
    """Where bubblewrap writes the id of its first process, in one or more chunks."""
    told: bytearray = field(default_factory=bytearray)

    def first_process(self) -> int | None:
        """That id, once it is known."""
        with suppress(BlockingIOError):
            self.told.extend(os.read(self.report, 4096))
        found = re.search(rb'"child-pid": (\d+)\D', self.told)
        return int(found[1]) if found else None


class Bubblewrap:
    """Runs commands in Linux namespaces, within limits."""

    def __init__(self, binary: str, hidden: Sequence[Path] = (), limits: Limits | None = None) -> None:
        """`hidden` are more folders that commands must not see, such as Loom's own state."""
        self._binary = binary
        self._further = hidden
        self._files = hidden_files()
        self._visible = (Path(sys.base_prefix),)
        self._limits = limits or Limits()
        self._repositories = Repositories()
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
    ) -> Finished:
        """Run the command to its end. All other processes end with the first process of its namespace, even detached
        ones.
        """
        with self.prepared(workspace, readable) as prepared:
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
                environment=clean_environment(str(TEMPORARY)),
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
        return replace(finished, limit=hint(finished.exit_code, finished.output, self._limits))

    @contextmanager
    def prepared(self, workspace: Path, readable: Sequence[Path] = ()) -> Iterator[PreparedSandbox]:
        """The words before a command that run it in the sandbox, valid until the end of the block."""
        hidden = hidden_folders(self._further)  # each time: Loom's own state may be created meanwhile
        outside = [folder for folder in hidden if not folder.is_relative_to(workspace)]
        inside = [folder for folder in hidden if folder.is_relative_to(workspace) and folder != workspace]
        with (
            mounted(workspace, self._repositories, readable, _above(inside, workspace)) as mounts,
            ExitStack() as stack,
        ):
            report, told = _pipe(stack)
            mounts.descriptors.append(told)
            filters = () if self._filter is None else ("--seccomp", str(_holding(self._filter, stack, mounts)))
            words = [
                *(self._binary, *_NAMESPACES, "--info-fd", str(told), *filters),
                *self._system(),
                *self._places(workspace, mounts, outside, inside),
                *("--chdir", str(workspace), "--"),
                *limiting(self._limits, _kernel(stack, mounts)),
            ]
            temporary = (*TEMPORARIES, *outside)
            yield PreparedSandbox(words=words, descriptors=mounts.descriptors, temporary=temporary, report=report)

    def _system(self) -> Sequence[str]:
        sized = ("--perms", "1777", "--size", str(self._limits.temporary), "--tmpfs")
        return (
            *("--ro-bind", "/", "/", "--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev"),
            *(word for folder in TEMPORARIES for word in (*sized, str(folder))),
            *("--remount-ro", "/dev"),
        )

    def _places(
        self, workspace: Path, mounts: Mounts, outside: Sequence[Path], inside: Sequence[Path]
    ) -> Iterator[str]:
        """Later mounts cover earlier ones: the workspace may be inside a hidden folder, or contain one."""
        covered = (*TEMPORARIES, *outside)
        for folder in outside:
            yield from ("--size", "4096", "--tmpfs", str(folder))
        for folder in self._visible:
            if any(folder.is_relative_to(each) for each in covered) and folder not in covered:
                yield from ("--ro-bind", str(folder), str(folder))
        yield from mounts.words
        for folder in dict.fromkeys((*mounts.emptied, *inside)):
            yield from ("--size", "4096", "--tmpfs", str(folder))
        # Skills may be inside emptied folders. Once they are mounted, nothing else is mounted there.
        yield from mounts.readable
        for folder in dict.fromkeys((*mounts.emptied, *inside)):
            yield from ("--remount-ro", str(folder))
        for name in (*self._files, *listening_sockets(covered, workspace)):
            yield from ("--ro-bind", "/dev/null", name)


def _above(hidden: Sequence[Path], workspace: Path) -> Sequence[Path]:
    """The folders of the workspace that contain these, outer ones first."""
    found = {folder for each in hidden for folder in each.parents if folder.is_relative_to(workspace)}
    return sorted(found - {workspace})


def _pipe(stack: ExitStack) -> tuple[int, int]:
    """Both ends of a pipe that is read without blocking."""
    ends = os.pipe()
    for end in ends:
        stack.callback(os.close, end)
    os.set_blocking(ends[0], False)
    return ends


def _kernel(stack: ExitStack, mounts: Mounts) -> int | None:
    """A descriptor for setting the sandbox's own highest process id; None if that would apply to the whole machine."""
    if not counts_ids_per_namespace(os.uname().release):
        return None
    found = os.open("/proc/sys/kernel", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stack.callback(os.close, found)
    mounts.descriptors.append(found)
    return found


def _holding(data: bytes, stack: ExitStack, mounts: Mounts) -> int:
    """A descriptor to read `data` from. A pipe accepts so little data at once."""
    reading, writing = os.pipe()
    stack.callback(os.close, reading)
    os.write(writing, data)
    os.close(writing)
    mounts.descriptors.append(reading)
    return reading


async def _wait_for_first_process(prepared: PreparedSandbox) -> int:
    """Wait a moment for the first process. Most commands have ended by then."""
    while True:
        await asyncio.sleep(FIRST)
        if (first := prepared.first_process()) is not None:
            return first
