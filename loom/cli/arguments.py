"""Arguments and option values that several commands share. Each error names the invalid option."""

import getpass
import os
import sys
import tomllib
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from loom.domain.core.errors import BadRequest
from loom.domain.core.media import MOST_BYTES

if TYPE_CHECKING:
    from loom.request_fields import ArchiveContentFields, ArchiveFields, GitFields, PartFields


def _started(incomplete: str) -> list[str]:
    """Complete a run's id from those that this user has started, without asking a server."""
    from loom.cli.started_runs import started_runs  # noqa: PLC0415 - only for shell completion

    return [name for name in dict.fromkeys(["@last", *started_runs()]) if name.startswith(incomplete)]


LONGEST_SHOWN: Final = 200
"""Maximum number of characters of a path in an error."""
RUN_HELP: Final = "The run's id, the beginning of its id, @last, or @N for row N of `loom list`."
RunId: TypeAlias = Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP, autocompletion=_started)]
OptionalRunId: TypeAlias = Annotated[str | None, typer.Argument(metavar="RUN", help=RUN_HELP, autocompletion=_started)]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")]
NoPager: TypeAlias = Annotated[
    bool, typer.Option("--no-pager", help="Print long output at once instead of in a pager.")
]
App: TypeAlias = Annotated[
    str | None, typer.Option("--app", help="Your app, as package.module:app; overrides LOOM_APP.")
]
Agent: TypeAlias = Annotated[str | None, typer.Option(help="Name of the agent.")]
Model: TypeAlias = Annotated[str | None, typer.Option(help="Model: openai:NAME, anthropic:NAME or demo.")]
Workspace: TypeAlias = Annotated[str | None, typer.Option(metavar="DIR", help="Folder that the agent works in.")]
Git: TypeAlias = Annotated[
    str | None, typer.Option("--git", metavar="URL", help="Git repository that the agent works on, in a new clone.")
]
Revision: TypeAlias = Annotated[
    str | None, typer.Option(metavar="REV", help="With --git: branch, tag or full commit id to clone.")
]
Push: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="BRANCH",
        help="With --git: new branch to push the change to if the run completes. {run} stands for the run's ID.",
    ),
]
Archive: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--archive",
        metavar="FILE",
        help="Archive (.tar, .tar.gz, .tar.bz2, .tar.xz or .zip) that the agent works on; `-`: standard input.",
    ),
]
Permissions: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="FILE|JSON", help='Rules that override the agent\'s, such as {"bash": "ask"}.'),
]
ModelOptions: TypeAlias = Annotated[
    str | None, typer.Option(metavar="JSON", help='Options of model calls, such as {"reasoning_effort": "high"}.')
]
PermissionMode: TypeAlias = Annotated[
    str | None, typer.Option(help="Permission mode: default, read-only, accept-edits or bypass.")
]
Skills: TypeAlias = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Skill to activate from the start; repeatable.")
]
OutputSchema: TypeAlias = Annotated[
    str | None, typer.Option(metavar="FILE|JSON", help="JSON Schema that the answer must match.")
]
Metadata: TypeAlias = Annotated[str | None, typer.Option(metavar="JSON", help="JSON object to store with the run.")]
Budget: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="JSON",
        help='Limits: {"tokens", "cost_usd", "tool_calls", "turns", "seconds", "depth", "children"}.',
    ),
]
Patience: TypeAlias = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="How long to wait for a provider or for restored access; 0 fails at once."),
]

Priority: TypeAlias = Annotated[
    int | None, typer.Option(min=1, max=5, help="Priority from 1, which goes first, to 5. The default is 3.")
]
User: TypeAlias = Annotated[
    str | None, typer.Option("--user", metavar="U", help="Id of the person that the run works for.")
]
Tenant: TypeAlias = Annotated[str | None, typer.Option(help="Customer, team or project that the run works for.")]

Attach: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--attach", metavar="FILE|URL", help="Image, PDF, recording or text to attach; repeatable."),
]


def new_app(group: str | None = None, summary: str | None = None) -> typer.Typer:
    """Return a Typer application for a command module. If `group` is None, its commands are top-level commands."""
    return typer.Typer(name=group, help=summary, no_args_is_help=group is not None, rich_markup_mode=None)


def read_fields(**options: Any) -> dict[str, Any]:
    """Return the fields of a request from options with the fields' names. An option without a value leaves its field to
    the defaults of the agent and the worker. Raises BadRequest if a value can't be read.
    """
    readers: dict[str, Callable[[Any], Any]] = {
        "workspace": lambda where: absolute(where) if isinstance(where, str) else where,
        "permissions": read_permissions,
        "model_options": lambda text: read_object(text, "--model-options"),
        "budget": lambda text: read_object(text, "--budget"),
        "output_schema": read_schema,
        "metadata": lambda text: read_object(text, "--metadata"),
    }
    given = {name: value for name, value in options.items() if value is not None}
    return {name: readers[name](value) if name in readers else value for name, value in given.items()}


def named_workspace(
    folder: str | None,
    git: str | None,
    revision: str | None,
    push: str | None = None,
    archive: str | None = None,
    *,
    on_stdin: str = "",
) -> "str | GitFields | ArchiveFields | None":
    """Return the folder, the repository or the archive that the options name, or None. `on_stdin` is what else the
    command reads from standard input. Raises BadRequest if they contradict.
    """
    named = [
        option for option, value in {"workspace": folder, "git": git, "archive": archive}.items() if value is not None
    ]
    if len(named) > 1:
        raise BadRequest(
            f"--{named[0]} and --{named[1]} can't be combined: with --git or --archive, the run works in a clone of its"
            " own",
            field="workspace",
        )
    of_git = [option for option, value in {"revision": revision, "push": push}.items() if value is not None]
    if git is None and of_git:
        raise BadRequest(f"--{of_git[0]} needs --git, which names the repository", field="workspace")
    if archive == "-" and on_stdin:
        raise BadRequest(
            f"standard input can't be both {on_stdin} and --archive: name a file for --archive",
            field="workspace.archive",
        )
    if archive is not None:
        return {"archive": _read_archive(archive)}
    return folder if git is None else _repository(git, revision, push)


def _repository(git: str, revision: str | None, push: str | None) -> "GitFields":
    given: GitFields = {"git": git}
    if revision is not None:
        given["revision"] = revision
    if push is not None:
        given["push"] = push
    return given


def _read_archive(name: str) -> "ArchiveContentFields":
    if name == "-":
        return {"data": b64encode(_limited(sys.stdin.buffer, "standard input", "--archive")).decode()}
    data, plain = _read_file(name, "--archive")
    return {"data": data, "name": plain}


def read_object(text: str, option: str) -> dict[str, Any]:
    """Parse a JSON object as strictly as the HTTP API does. Raises BadRequest if the text isn't a JSON object."""
    from pydantic_core import from_json  # noqa: PLC0415 - some commands read no JSON

    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise BadRequest(f"{option}: not valid JSON: {error}", field=option) from None
    if not isinstance(value, dict):
        raise BadRequest(f"{option}: must be a JSON object, not {_json_type(value)}", field=option)
    return value


def read_permissions(text: str, option: str = "--permissions") -> dict[str, str]:
    """Read rules from a JSON object or a file. A JSON or TOML file has them at the top level or under `permissions`."""
    from loom.domain.permissions.rules import parse_rules  # noqa: PLC0415 - most commands read no rules

    rules = read_object(text, option) if _is_json(text) else _rules_in_file(text, option)
    for name, verdict in rules.items():
        if not isinstance(verdict, str):
            raise BadRequest(f"{option}: rule {name!r} must be allow, ask or deny, not {verdict!r}", field=option)
    try:
        parse_rules(rules)
    except BadRequest as error:
        raise BadRequest(f"{option}: {error.message}", field=option) from None
    return rules


def read_attachments(names: Sequence[str], option: str = "--attach") -> "list[PartFields]":
    """Read the files on this machine. A worker fetches the URLs."""
    return [
        {"url": name} if name.startswith(("http://", "https://")) else _attached_file(name, option) for name in names
    ]


def _attached_file(name: str, option: str) -> "PartFields":
    data, plain = _read_file(name, option)
    return {"data": data, "name": plain}


def _read_file(name: str, option: str) -> tuple[str, str]:
    """Return the content in base64, and the name without folders."""
    path = local_path(name, option)
    try:
        with path.open("rb") as file:
            data = _limited(file, name, option)
    except OSError as error:
        raise BadRequest(f"{option}: {name} cannot be read: {error.strerror or error}", field=option) from None
    return b64encode(data).decode(), path.name


def _limited(file: IO[bytes], name: str, option: str) -> bytes:
    data = file.read(MOST_BYTES + 1)
    if not data:
        raise BadRequest(f"{option}: {name} is empty", field=option)
    if len(data) > MOST_BYTES:
        raise BadRequest(f"{option}: {name} is larger than {MOST_BYTES:,} bytes", field=option)
    return data


def read_schema(text: str, option: str = "--output-schema") -> dict[str, Any]:
    """Read a JSON Schema from a JSON object or from a file that contains one."""
    return read_object(text, option) if _is_json(text) else _object_in_file(text, option)


def absolute(folder: str, option: str = "--workspace") -> str:
    """Return the folder's absolute path, because the worker may run in another directory."""
    return str(local_path(folder, option))


def local_path(name: str | Path, option: str) -> Path:
    """Return the absolute path of a file or folder on this machine, which need not exist.

    Raises BadRequest if the path can't be followed: it is too long, a circle of links, in a closed folder, or in the
    home of an unknown user.
    """
    try:
        path = Path(name).expanduser().absolute()
        path.stat()
    except RuntimeError:
        raise BadRequest(f"{option}: {_shown(name)} is in the home of an unknown user", field=option) from None
    except (FileNotFoundError, NotADirectoryError):
        return path
    except OSError as error:
        raise BadRequest(f"{option}: {_shown(name)} cannot be read: {error.strerror}", field=option) from None
    return path


def _shown(name: str | Path) -> str:
    text = str(name)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def user_name() -> str:
    """Return the user's login name, which identifies the sender of each signal and message to a run."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no passwd entry
        return f"uid {os.getuid()}"


def _is_json(text: str) -> bool:
    return text.lstrip().startswith(("{", "["))


def _rules_in_file(name: str, option: str) -> dict[str, Any]:
    found = _object_in_file(name, option)
    inner = found.get("permissions")
    return dict(inner) if isinstance(inner, Mapping) else found


def _object_in_file(name: str, option: str) -> dict[str, Any]:
    """Read the object in a JSON or TOML file."""
    path = local_path(name, option)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadRequest(f"{option}: {name!r} is neither a JSON object nor an existing file", field=option) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{option}: {name} cannot be read: {error}", field=option) from None
    read = _read_toml if path.suffix.lower() == ".toml" else read_object
    return read(text, f"{option} {name}")


def _read_toml(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadRequest(f"{where}: not valid TOML: {error}", field=where) from None


def _json_type(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")
