"""The `loom` command: registers what the other modules of this package bring, and turns errors into exit codes.

Each of them exposes `register(app)` and imports what it works with inside its commands, so that `loom --help` is fast.
"""

import os
import sys
from functools import cache
from typing import TYPE_CHECKING, NoReturn

import typer

from loom.cli.commands import (
    agents,
    crews,
    forks,
    knowledge,
    memory,
    permissions,
    runs,
    show,
    skills,
    snapshots,
    stack,
    tools,
    validate,
)
from loom.cli.commands import steering as steer
from loom.composition.logs import configure_logs
from loom.domain.core.errors import LoomError
from loom.exit_codes import FAILED, code_of, leave

if TYPE_CHECKING:
    from loom.activities.adapters.redaction.mask import SecretMask

COMMANDS = (
    stack,
    runs,
    steer,
    show,
    forks,
    permissions,
    tools,
    agents,
    crews,
    knowledge,
    memory,
    skills,
    snapshots,
    validate,
)
"""Modules with a `register(app)`: the next ones go here."""


def build_app() -> typer.Typer:
    """The whole command line."""
    app = typer.Typer(
        name="loom",
        help="Durable agents on Temporal: every run is a workflow, every model call and tool call an activity.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    for module in COMMANDS:
        module.register(app)
    return app


def main() -> NoReturn:
    """Entry point of the `loom` command."""
    # Logs go to standard error, where there is something to say; `loom worker` sets its own.
    configure_logs("DEBUG" if _is_debugging() else "WARNING", "console", _masked)
    try:
        build_app()()
        code = 0  # not reached: the line above always ends with SystemExit
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else FAILED
    except LoomError as error:
        typer.echo(f"loom: {error.message}", err=True)
        code = code_of(error)
    except Exception as error:  # noqa: BLE001 - the last line of defence: one line for people, all of it on demand
        if _is_debugging():
            sys.excepthook(type(error), error, error.__traceback__)
        typer.echo(f"loom: {type(error).__name__}: {error} (LOOM_LOG_LEVEL=DEBUG shows where)", err=True)
        code = code_of(error)
    leave(code)


def _masked(line: str) -> str:
    return _mask().redact(line)


@cache
def _mask() -> "SecretMask":
    """Made when there is something to log, since most commands never do."""
    from loom.activities.adapters.redaction.known_secrets import secrets_of  # noqa: PLC0415
    from loom.activities.adapters.redaction.mask import SecretMask  # noqa: PLC0415

    return SecretMask(secrets_of(os.environ))


def _is_debugging() -> bool:
    return os.environ.get("LOOM_LOG_LEVEL", "").upper() == "DEBUG"
