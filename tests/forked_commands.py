"""`loom` in a process of its own, without the second that importing its modules takes.

A server process imports them once, and forks for each command. A small program stands in for the fork: it gives it its
own arguments, environment, folder and standard streams, passes on signals, and ends as the fork ends.

A fork doesn't read what Python reads as it starts: the locale, and variables that begin with `PYTHON`. Tests of these,
and of the start itself, use the real program.
"""

import atexit
import pkgutil
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Final

import loom.cli.commands
from loom.testing.fork_server import WORKER_MODULES, ForkServer, fork_server

STAND_IN: Final = Path(__file__).with_name("forked_commands_stand_in.py")


def forked(*words: str) -> tuple[str, ...]:
    """The words that start `loom` with these arguments."""
    return (sys.executable, "-I", "-S", str(STAND_IN), server().address, *words)


@cache
def server() -> ForkServer:
    """A server that runs until this process ends. It also forks workers, so that one import serves both."""
    commands = [each.name for each in pkgutil.iter_modules(loom.cli.commands.__path__, "loom.cli.commands.")]
    until_exit = ExitStack()
    atexit.register(until_exit.close)
    return until_exit.enter_context(fork_server([*commands, *WORKER_MODULES]))
