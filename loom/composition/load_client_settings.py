"""Choose where the settings of a client come from: all sources, or the environment alone in a small installation."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from loom.composition.client_settings import ClientSettings
from loom.domain.core.errors import BadRequest
from loom.extras import WORKER, install, is_installed

_READERS: Final = (
    *("pydantic_settings", "dotenv", "psutil"),
    *("structlog", "typer", "redis", "psycopg", "cryptography"),
)
"""What reads `.env` and `loom.toml`, and finds the processes of an embedded stack, and further packages of a worker.
Other programs may have some of them, too.
"""
_SET: Final = re.compile(
    r"""^[ \t]*(?:export[ \t]+)?(\w+)[ \t]*=[ \t]*(?!\#|(?:''|"")[ \t]*(?:\#|$))\S""", re.MULTILINE
)
"""Matches a line of `.env` that sets a variable to something."""


def load_client_settings() -> ClientSettings:
    """Return what `load_settings` reads, if the packages for that are installed, or else the environment's settings.

    In the latter case, `.env` and `loom.toml` aren't read. Raises BadRequest if one of them has a setting of a client
    that isn't in the environment, because it would be ignored.
    """
    if finds_stacks():
        from loom.composition.load_settings import load_settings  # noqa: PLC0415 - its packages are those of a worker

        return load_settings()
    settings = ClientSettings.from_environment()
    for file, field in _in_files():
        if field not in settings.model_fields_set:
            variable = ClientSettings.names_of(field)[0]
            raise BadRequest(
                f"{file} sets {variable}, but this installation reads only the environment: export {variable}, or"
                f" {install(WORKER)}",
                field=variable,
            )
    return settings


def finds_stacks() -> bool:
    """Return whether this installation finds embedded stacks, and reads `.env` and `loom.toml`."""
    return all(map(is_installed, _READERS))


def _in_files() -> Iterator[tuple[str, str]]:
    """Yield the files in the working directory that set something for a client, and the fields that they set."""
    fields = ClientSettings.model_fields
    by_variable = {name.lower(): field for field in fields for name in ClientSettings.names_of(field)}
    if Path(".env").is_file():
        for variable in _SET.findall(Path(".env").read_text(encoding="utf-8", errors="replace")):
            if variable.lower() in by_variable:
                yield ".env", by_variable[variable.lower()]
    if Path("loom.toml").is_file():
        try:
            table = tomllib.loads(Path("loom.toml").read_text(encoding="utf-8"))
        except ValueError as error:
            raise BadRequest(f"loom.toml cannot be read: {error}", field="loom.toml") from None
        yield from (("loom.toml", field) for field in table if field in fields)
