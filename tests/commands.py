"""`loom` inside this process: for commands that need no server, a second faster than in one of their own."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer.testing import CliRunner

from loom.cli.main import build_app
from loom.domain.core.errors import LoomError
from loom.exit_codes import code_of


@dataclass(frozen=True)
class Ran:
    """A command that has ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Commands:
    """`loom` in a folder of its own."""

    folder: Path

    def __call__(self, *words: str) -> Ran:
        """Run a command to its end; an error of Loom's ends it as it ends `main`."""
        ran = CliRunner().invoke(build_app(), words)
        error: Any = ran.exception
        if isinstance(error, LoomError):
            return Ran(code=code_of(error), out=ran.stdout, err=error.message)
        if error is not None and not isinstance(error, SystemExit):
            raise error
        return Ran(code=ran.exit_code, out=ran.stdout, err=ran.stderr)


@contextmanager
def commands_in(folder: Path, monkeypatch: pytest.MonkeyPatch, **env: str) -> Iterator[Commands]:
    """The command without the settings of whoever runs the tests; logging and modules are afterwards as they were."""
    path = list(sys.path)
    for name in [name for name in os.environ if name.startswith(("LOOM_", "TEMPORAL_", "OPENAI_", "ANTHROPIC_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LOOM_HOME", str(folder / ".loom"))
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with logs_as_they_were(monkeypatch):
        yield Commands(folder)
    sys.path[:] = path
    forget_modules_of(folder)


@contextmanager
def logs_as_they_were(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever the body configures is undone: loggers keep what they were first used with only if they are told to."""
    configure = structlog.configure
    monkeypatch.setattr(
        structlog, "configure", lambda **given: configure(**{**given, "cache_logger_on_first_use": False})
    )
    root = logging.getLogger()
    loggers = (root, *map(logging.getLogger, ("loom", "mcp.client.stdio", "temporalio")))
    handlers, levels = root.handlers[:], [logger.level for logger in loggers]
    try:
        yield
    finally:
        root.handlers[:] = handlers
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        structlog.reset_defaults()


def forget_modules_of(folder: Path) -> None:
    """Modules of this folder are not found again in another's place."""
    for name, module in sys.modules.copy().items():  # threads import, too
        places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
        if any(str(place).startswith(str(folder)) for place in places):
            del sys.modules[name]
