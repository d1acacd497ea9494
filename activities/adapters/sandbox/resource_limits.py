"""Resource limits of one sandboxed command with all of its processes, and the message when it exceeds one.

Two mechanisms work together, for root and for ordinary users, and without cgroups, which a worker can rarely write to:
the kernel's own limits per process, set here, and a watchdog that periodically adds up all processes of the command.
"""

import re
from collections.abc import Mapping, Sequence
from signal import SIGXFSZ
from typing import Final, Literal, TypeAlias

from loom.domain.tools.sandbox_limits import Limits

_KIB: Final = 1024
_GIB: Final = 1024**3
_SPARE: Final = 32
"""Processes between the watchdog's limit and the kernel's, so that a fork bomb is ended and not only slowed down."""

_RESERVED_IDS: Final = 300
"""Process ids that the kernel does not reuse."""

_SOFT_FILES: Final = 1024
"""Open files until a program raises the limit. With a higher default, old programs that use `select` break."""

Kind: TypeAlias = Literal["memory", "processes", "cpu", "file_size", "disk", "room", "temporary", "open_files"]


def counts_ids_per_namespace(release: str) -> bool:
    """Whether `pid_max` is per namespace, as of Linux 6.14. Before that, writing it would affect the whole machine."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return found is not None and (int(found[1]), int(found[2])) >= (6, 14)


def limiting(limits: Limits, kernel: int | None = None) -> list[str]:
    """Words before a command: a shell that lowers the kernel's limits for good, and stops if one is rejected.

    It has to run inside the sandbox, where the number of processes is counted for the sandbox alone. `kernel` is a
    descriptor of `/proc/sys/kernel` if process ids are per namespace. That limit also applies to root, whom the kernel
    exempts from the other one. The command sees that folder read-only.

    The shell stays as the first process of the sandbox, reaps orphans and ends with the command's exit code. Its own
    message about a command that a signal ended is suppressed.
    """
    ids = (
        ()
        if kernel is None
        else (
            f"echo {_RESERVED_IDS + limits.processes + _SPARE} > /dev/fd/{kernel}/pid_max",
            f"exec {kernel}<&-",
        )
    )
    steps = (
        *ids,
        f"ulimit -c 0 -u {limits.processes + _SPARE} -f {limits.file_size // _KIB} -d {limits.memory // _KIB}",
        f"ulimit -S -n {min(_SOFT_FILES, limits.open_files)}",
        f"ulimit -H -n {limits.open_files}",
        'exec {errors}>&2 2> /dev/null && (exec "$@" 2>&$errors {errors}>&-); exit $?',
    )
    return ["bash", "-c", " && ".join(steps), "loom"]


_ADVICE: Final[Mapping[Kind, str]] = {
    "memory": "one command may use {memory} of memory: work on less at a time",
    "processes": "one command may have {processes} processes and threads: start fewer at a time",
    "cpu": "one command may use {cpu:g} s of processor time per second of its timeout: do less, or split the work",
    "file_size": "one file may have {file_size}: write several files, or less",
    "disk": "one command may write {disk} to the disk: write less, or delete what is not needed",
    "room": "the disk of the workspace is nearly full: delete what is not needed before you write more",
    "temporary": "/tmp can hold {temporary}, and the disk is limited: write less, or elsewhere",  # noqa: S108 - words
    "open_files": "one process may have {open_files} open files: close some, or see `ulimit -n`",
}


def explain(kind: Kind, limits: Limits) -> str:
    """Describe a limit and what to do about it, as the end of a sentence that starts with what happened."""
    sizes = {name: _size(getattr(limits, name)) for name in ("memory", "file_size", "disk", "temporary")}
    return _ADVICE[kind].format(**sizes, processes=limits.processes, cpu=limits.cpu, open_files=limits.open_files)


_SIGNS: Final[Sequence[tuple[str, Kind]]] = (
    ("MemoryError", "memory"),
    ("Cannot allocate memory", "memory"),
    ("bad_alloc", "memory"),
    ("out of memory", "memory"),
    ("Resource temporarily unavailable", "processes"),
    ("can't start new thread", "processes"),
    ("File too large", "file_size"),
    ("File size limit exceeded", "file_size"),
    ("No space left on device", "temporary"),
    ("Too many open files", "open_files"),
)
"""What programs print when the kernel denies them more of something."""


def hint(exit_code: int, output: str, limits: Limits) -> str:
    """The limit that a failed command seems to have reached, by its exit code and output; empty for none."""
    if exit_code == 128 + SIGXFSZ:
        return _seems("file_size", limits)
    kind = next((kind for words, kind in _SIGNS if words in output), None) if exit_code else None
    return _seems(kind, limits) if kind else ""


def _seems(kind: Kind, limits: Limits) -> str:
    return f"this looks like a limit of the sandbox; {explain(kind, limits)}"


def _size(amount: int) -> str:
    for unit, name in ((_GIB, "GiB"), (1024**2, "MiB")):
        if amount >= unit:
            return f"{amount / unit:.4g} {name}"
    return f"{amount // _KIB} KiB"
