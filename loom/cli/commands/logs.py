"""The `logs` command, which prints the log files of the stack on this machine."""

import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, TextIO

import typer

from loom.cli.arguments import new_app
from loom.cli.output import plain, print_notice
from loom.composition.load_settings import read_settings
from loom.domain.core.errors import BadRequest
from loom.domain.core.suggestions import nearest
from loom.stack.errors import StackError

PARTS: Final = ("worker", "serve", "supervisor", "temporal", "postgres", "redis")
PAUSE: Final = 0.2
"""Seconds between two checks for new lines."""

app = new_app()


@app.command()
def logs(
    part: Annotated[str, typer.Argument(metavar="[PART]", help=f"One of {', '.join(PARTS)}.")] = PARTS[0],
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of last lines to print.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines too, until Ctrl-C.")] = False,
) -> None:
    """Print the log of the stack's worker, or of another part of the stack.

    A worker that you start with `loom worker` logs to its own standard error.
    """
    if part not in PARTS:
        known = f"use one of {', '.join(PARTS)}"
        raise BadRequest(f"the stack has no part {part!r}: {nearest(part, PARTS, known)}", field="PART")
    path = read_settings().home / "logs" / f"{part}.log"
    with _opened(path) as file, suppress(KeyboardInterrupt):
        print_notice(f"{path}:")
        sys.stdout.writelines(map(plain, deque(file, maxlen=lines)))
        while follow:
            sys.stdout.flush()
            time.sleep(PAUSE)
            sys.stdout.writelines(map(plain, file))


def _opened(path: Path) -> TextIO:
    try:
        return path.open(encoding="utf-8", errors="replace")
    except OSError as error:
        hint = "start the stack with `loom up`, or set LOOM_HOME to the .loom folder of a stack"
        raise StackError(f"{path} can't be read: {error.strerror}: {hint}") from None
