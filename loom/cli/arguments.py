"""Option values that are more than a word: JSON objects, permission files, folders. What is wrong is named."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loom.domain.core.errors import BadRequest


def read_object(text: str, option: str) -> dict[str, Any]:
    """A JSON object given on the command line; raises BadRequest that names the option."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadRequest(f"{option}: not valid JSON: {error}", field=option) from None
    if not isinstance(value, dict):
        raise BadRequest(f"{option}: must be a JSON object, not {_kind(value)}", field=option)
    return value


def read_permissions(text: str, option: str = "--permissions") -> dict[str, str]:
    """Rules as a JSON object, or from a JSON or TOML file that holds one, at its top or under `permissions`."""
    from loom.domain.permissions.rules import parse_rules  # noqa: PLC0415 - only this option needs it

    rules = read_object(text, option) if text.lstrip().startswith(("{", "[")) else _rules_of(text, option)
    for name, verdict in rules.items():
        if not isinstance(verdict, str):
            raise BadRequest(f"{option}: rule {name!r} must say allow, ask or deny, not {verdict!r}", field=option)
    try:
        parse_rules(rules)
    except BadRequest as error:
        raise BadRequest(f"{option}: {error.message}", field=option) from None
    return rules


def read_schema(text: str, option: str = "--output-schema") -> dict[str, Any]:
    """A JSON Schema as a JSON object, or from a file that holds one."""
    return read_object(text, option) if text.lstrip().startswith(("{", "[")) else _object_in(text, option)


def _rules_of(name: str, option: str) -> dict[str, Any]:
    found = _object_in(name, option)
    inner = found.get("permissions")
    return dict(inner) if isinstance(inner, Mapping) else found


def _object_in(name: str, option: str) -> dict[str, Any]:
    """The object in a JSON or TOML file."""
    path = Path(name).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadRequest(
            f"{option}: {name!r} is neither a JSON object nor a file that is there", field=option
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{option}: {name} cannot be read: {error}", field=option) from None
    read = _toml if path.suffix.lower() == ".toml" else read_object
    return read(text, f"{option} {name}")


def _toml(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadRequest(f"{where}: not valid TOML: {error}", field=where) from None


def absolute(folder: str) -> str:
    """The folder as the worker has to be told it."""
    return str(Path(folder).expanduser().absolute())


def user_name() -> str:
    """Who is giving orders: the operating system's name for the person."""
    import getpass  # noqa: PLC0415 - only orders are signed
    import os  # noqa: PLC0415

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without an entry
        return f"uid {os.getuid()}"


def _kind(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")
