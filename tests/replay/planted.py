"""Changes that would break runs in flight, planted one at a time: a check of this folder must find each.

python -m tests.replay.planted                 all of them, some minutes
python -m tests.replay.planted chats parking   only those of these kinds
python -m tests.replay.planted --matter        only those that matter most
python -m tests.replay.planted --all-checks 7  every check that finds the change with this number

The changes are in `plants.py`. No file is changed: a process of its own imports the changed source instead.
"""

import importlib
import importlib.machinery
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.replay.plants import PLANTED, Planted

ROOT: Final = Path(__file__).parents[2]
PRELOADED: Final = (
    *("pydantic", "structlog", "temporalio.client", "temporalio.worker", "temporalio.contrib.pydantic"),
    *("docstring_parser", "mimetypes", "zipfile", "difflib", "tomllib", "shlex", "csv"),
)
"""What each of the processes needs and no change is planted in."""
LONGEST: Final = 60
"""Seconds. A change that makes a replay hang is found."""
LEAST: Final = 0.95
"""The share of the changes that must be found."""
_MISSED, _FOUND, _BROKEN = range(3)


def source_with(planted: Planted) -> str:
    """Return the source of the changed file."""
    whole = (ROOT / planted.path).read_text()
    if whole.count(planted.before) != 1:
        raise ValueError(f"{planted.path} has {whole.count(planted.before)} places with {planted.before!r}")
    return whole.replace(planted.before, planted.after)


def plant(planted: Planted) -> None:
    """Import the changed source from now on, instead of the file."""
    source, changed = source_with(planted), (ROOT / planted.path).resolve()
    of_file = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, name: str) -> object:
        path = Path(self.path)
        is_changed = path.name == changed.name and path.resolve() == changed
        return compile(source, self.path, "exec", dont_inherit=True) if is_changed else of_file(self, name)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


def found_by(planted: Planted, output: Path, *, every: bool) -> int:
    """In this process, plant the change, and write down which checks find it."""
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    plant(planted)
    checks = importlib.import_module("tests.replay.checks")
    names: list[str] = []
    for name in checks.failed(planted.by):
        names.append(name)
        if not every:
            break
    output.write_text(" ".join(names))
    return _FOUND if names else _MISSED


def tried(
    chosen: Sequence[Planted], folder: Path, *, every: bool = False, jobs: int = 2
) -> Iterator[tuple[Planted, str]]:
    """Plant each of these changes in a process of its own, and yield it with the checks that find it."""
    for name in PRELOADED:
        importlib.import_module(name)
    waiting, running = list(enumerate(chosen)), dict[int, tuple[int, Planted]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            number, planted = waiting.pop(0)
            running[_forked(planted, folder / str(number), every=every)] = number, planted
        pid, status = os.wait()
        number, planted = running.pop(pid)
        written = (folder / str(number)).read_text()
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == _BROKEN:
            raise RuntimeError(f"{planted.path}: {planted.after}\n{written}")
        yield planted, written if os.WIFEXITED(status) else "a replay hangs"


def _forked(planted: Planted, output: Path, *, every: bool) -> int:
    if pid := os.fork():
        return pid
    status = _BROKEN
    try:
        signal.alarm(LONGEST)
        status = found_by(planted, output, every=every)
    except BaseException:  # noqa: BLE001 - told by the parent
        output.write_text(traceback.format_exc())
    os._exit(status)


def main(arguments: list[str]) -> int:
    """Return 1 if a change isn't found and its entry doesn't say why, or if too few are found."""
    every, matter = "--all-checks" in arguments, "--matter" in arguments
    named = [each for each in arguments if not each.startswith("--")]
    chosen = [
        planted
        for number, planted in enumerate(PLANTED)
        if (planted.matters or not matter) and (not named or planted.kind in named or str(number) in named)
    ]
    missed: list[Planted] = []
    with tempfile.TemporaryDirectory() as folder:
        for planted, checks in tried(chosen, Path(folder), every=every):
            missed += [] if checks else [planted]
            number, change = PLANTED.index(planted), " ".join(planted.after.split())
            verdict = "found " if checks else "MISSED"
            told = checks or planted.unseen
            print(f"{number:>3} {verdict} {planted.kind}: {planted.path}: {change[:80]} [{told}]", flush=True)
    found = len(chosen) - len(missed)
    print(f"{found} of {len(chosen)} found")
    is_new = any(not planted.unseen for planted in missed)
    return 1 if is_new or (not named and found < LEAST * len(chosen)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
