"""Resource limits for all processes of a sandboxed command, and the messages for exceeded limits.

Two mechanisms enforce the limits for both root and ordinary users. This module sets the kernel's limits for each
process, and a watchdog periodically adds up the usage of all of the command's processes. Cgroups aren't used, because a
worker rarely has permission to write to them.
"""

import re
from collections.abc import Mapping, Sequence
from signal import SIGXFSZ
from typing import Final, Literal, TypeAlias

from loom.domain.tools.sandbox_limits import Limits

_KIB: Final = 1024
_GIB: Final = 1024**3
_SPARE: Final = 32
"""Difference between the kernel's process limit and the watchdog's lower process limit. The difference lets the
watchdog stop a fork bomb that the kernel's limit would only slow down.
"""

_RESERVED_IDS: Final = 300
"""Number of process ids that the kernel doesn't reuse."""

_SOFT_FILES: Final = 1024
"""Default limit on open files. A program can raise it. A higher default would break old programs that use `select`."""

Kind: TypeAlias = Literal["memory", "processes", "cpu", "file_size", "disk", "room", "temporary", "open_files"]


def counts_ids_per_namespace(release: str) -> bool:
    """Whether each namespace has its own `pid_max`, as in Linux 6.14 and later. In earlier versions, setting `pid_max`
    would affect the whole machine.
    """
    found = re.match(r"(\d+)\.(\d+)", release)
    return found is not None and (int(found[1]), int(found[2])) >= (6, 14)


def limiting(limits: Limits, kernel: int | None = None) -> list[str]:
    """Return the command-line words that precede a command. They start a shell that permanently lowers the kernel's
    limits and exits if a limit is rejected.

    The shell must run inside the sandbox, so that only the sandbox's processes are counted. If process ids are per
    namespace, `kernel` is a descriptor of `/proc/sys/kernel`. The maximum process id also applies to root, which is
    exempt from the limit on the number of processes. The command itself can only read `/proc/sys/kernel`.

    The shell remains the first process of the sandbox, reaps orphaned processes and exits with the command's exit code.
    If a signal kills the command, the shell's own message about this is suppressed.
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
    "memory": "one command may use {memory} of memory: process less data at a time",
    "processes": "one command may have {processes} processes and threads: start fewer at a time",
    "cpu": "one command may use {cpu:g} s of processor time per second of its timeout: do less, or split the work",
    "file_size": "the size of one file is limited to {file_size}: write less, or write several files",
    "disk": "one command may write {disk} to the disk: write less, or delete files that are not needed",
    "room": "the disk of the workspace is nearly full: delete files that are not needed before you write more",
    "temporary": "/tmp can hold {temporary}, and the disk is limited: write less, or write elsewhere",  # noqa: S108 - words
    "open_files": "one process may have {open_files} open files: close some, or see `ulimit -n`",
}


def explain(kind: Kind, limits: Limits) -> str:
    """Return a description of a limit, with advice on how to stay within it. The caller appends this text to its own
    message.
    """
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
"""Matches the messages that programs print when they reach a kernel limit."""


def hint(exit_code: int, output: str, limits: Limits) -> str:
    """Return a hint about the limit that a failed command seems to have reached. The command's exit code and output
    indicate the limit. Return an empty string if they don't indicate any limit.
    """
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
