"""Write the reference pages that the code itself knows: `docs/reference/cli.md` and `docs/reference/settings.md`.

python docs/make_reference.py           write both pages
python docs/make_reference.py --check   fail if a page isn't up to date
"""

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer import Context
from typer.core import TyperGroup
from typer.main import get_command

from loom.cli.main import LazyCommand, build_app
from loom.composition.client_settings import ClientSettings
from loom.composition.settings import Settings

HERE = Path(__file__).parent / "reference"


def cli_page() -> str:
    """Return the page of all commands, in the order of `loom --help`."""
    root = get_command(build_app())
    if not isinstance(root, TyperGroup):
        raise TypeError(root)
    parts = [
        "# Commands",
        "",
        "This page is generated from the commands themselves. `loom COMMAND --help` shows the same in your terminal.",
        "The [contract](../contract.md#exit-codes-of-loom) lists the exit codes.",
    ]
    for name in root.list_commands(Context(root)):
        command: Any = root.commands[name]
        command = command.load() if isinstance(command, LazyCommand) else command
        parts += _command(f"loom {name}", command)
    return "\n".join(parts) + "\n"


def _command(path: str, command: Any) -> Iterator[str]:
    context = Context(command, info_name=path)
    yield from ("", f"## {path}" if path.count(" ") == 1 else f"### {path}", "", inspect.cleandoc(command.help or ""))
    if isinstance(command, TyperGroup):
        for name in command.list_commands(context):
            yield from _command(f"{path} {name}", command.commands[name])
        return
    yield from ("", "```text", " ".join((path, *command.collect_usage_pieces(context))), "```")
    records = (each.get_help_record(context) for each in command.get_params(context))
    rows = [record for record in records if record is not None and record[0] != "--help"]
    if rows:
        yield from ("", "| option or argument | meaning |", "|---|---|")
        yield from (f"| `{names}` | {_cell(text)} |" for names, text in rows)


def settings_page() -> str:
    """Return the page of all settings, in the order of the classes."""
    own = [name for name in Settings.model_fields if name not in ClientSettings.model_fields]
    return "\n".join(
        (
            "# Settings",
            "",
            "This page is generated from `loom.Settings`. Set a variable in the environment or in `.env`, or set its",
            "field in `loom.toml`: its name in lowercase, without `LOOM_`. The environment takes precedence over",
            "`.env`, and `.env` over `loom.toml`. Loom refuses settings in `.env` that select code, programs or",
            "folders, or that weaken a protection, because agents could write to that file.",
            "[Operations](../operations.md) explains the most common settings.",
            "",
            "## Clients and workers",
            "",
            "These are the fields of `loom.ClientSettings`, too. A client that is installed without the packages of a",
            "worker reads them from the environment alone ([install](../install.md)).",
            "",
            *_table(ClientSettings.model_fields),
            "",
            "## Workers and commands",
            "",
            *_table(own),
            "",
        )
    )


def _table(fields: Iterable[str]) -> Iterator[str]:
    yield from ("| variable | default | meaning |", "|---|---|---|")
    for name in fields:
        field = Settings.model_fields[name]
        yield f"| {_variables(name, field)} | {_default(field)} | {_cell(field.description or '')} |"


def _variables(name: str, field: FieldInfo) -> str:
    alias: Any = field.validation_alias
    names = [each for each in alias.choices if each.isupper()] if alias is not None else [f"LOOM_{name.upper()}"]
    return f"`{names[0]}`"


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined or isinstance(value, SecretStr):
        return "" if field.default_factory is None else "see its meaning"
    if isinstance(value, tuple) and value:
        return f"`{','.join(map(str, value))}`"
    return "none" if value in (None, (), "") else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()


def main() -> None:
    """Write the pages, or check them."""
    stale = []
    for file, text in ((HERE / "cli.md", cli_page()), (HERE / "settings.md", settings_page())):
        if "--check" not in sys.argv:
            file.write_text(text, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != text:
            stale.append(file.name)
    if stale:
        sys.exit(f"out of date: {', '.join(stale)}; run `make reference`")


if __name__ == "__main__":
    main()
