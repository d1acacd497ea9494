"""Show long output in a pager: `$PAGER`, or else `less`. Short output and output to a pipe are printed at once."""

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from rich.console import Console

from loom.cli.output import print_notice

USUAL: Final = "less"
_LESS: Final = "FRX"
"""Options of `less` that git uses too: colors, no pager for what fits the screen, and leave the text on the screen."""


def pager_command() -> list[str]:
    """Return the command of the user's pager."""
    return shlex.split(os.environ.get("PAGER") or USUAL) or [USUAL]


def pager_environment() -> Mapping[str, str]:
    """Return the environment for the pager."""
    return {"LESS": _LESS, **os.environ}


@contextmanager
def paged(out: Console, *, wanted: bool = True) -> Iterator[None]:
    """Print what the body prints, in a pager if it is longer than the terminal."""
    if not (wanted and out.is_terminal):
        yield
        return
    with out.capture() as captured:
        yield
    text = captured.get()
    if text.count("\n") < out.height or not _shown_in_pager(text):
        out.file.write(text)
        out.file.flush()


def _shown_in_pager(text: str) -> bool:
    try:
        command = pager_command()
        with interrupts_left_to_child():
            subprocess.run(command, input=text.encode("utf-8", "replace"), env=pager_environment(), check=False)
    except (OSError, ValueError) as error:
        print_notice(f"cannot start the pager {os.environ.get('PAGER') or USUAL}: {error}")
        return False
    return True


@contextmanager
def interrupts_left_to_child() -> Iterator[None]:
    """Ignore Ctrl-C and Ctrl-\\ in this process while another program uses the terminal."""
    # A handler, unlike SIG_IGN, isn't inherited.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGQUIT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
