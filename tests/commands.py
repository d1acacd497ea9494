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

from loom_cli.exits import code_of
from loom_cli.main import build_app
from loom_domain.errors import LoomError


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
    known, path, handlers = set(sys.modules), list(sys.path), list(logging.getLogger().handlers)
    for name in [name for name in os.environ if name.startswith(("LOOM_", "TEMPORAL_", "OPENAI_", "ANTHROPIC_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LOOM_HOME", str(folder / ".loom"))
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    yield Commands(folder)
    structlog.reset_defaults()
    logging.getLogger().handlers[:] = handlers
    sys.path[:] = path
    here = (module for name, module in sys.modules.items() if name not in known)
    for module in [module for module in here if str(getattr(module, "__file__", None) or "").startswith(str(folder))]:
        del sys.modules[module.__name__]
