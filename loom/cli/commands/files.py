"""The `files` commands, which list, read and write files in a run's workspace, on whichever machine it is."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from loom.cli.arguments import Json, RunId, new_app, user_name
from loom.cli.output import console, counted, plain, print_json, print_notice
from loom.cli.run_names import with_run
from loom.domain.core.errors import BadRequest
from loom.domain.core.media import MOST_BYTES
from loom.domain.core.run_files import FileEntry

app = new_app("files", "List, read and write files in a run's workspace.")

STANDARD_INPUT = "-"


@app.command(name="list")
def list_files(
    run_id: RunId,
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="A folder, relative to the workspace.")] = ".",
    as_json: Json = False,
) -> None:
    """List a folder of a run's workspace.

    Folders end with /, and links with @.
    """
    found = with_run(run_id, lambda loom, run: loom.files.list(run, path, by=user_name()))
    if as_json:
        print_json(found)
        return
    out = console()
    for entry in found.entries:
        out.print(_line(entry), soft_wrap=True)
    if found.left_out:
        print_notice(f"{found.left_out:,} more entries aren't shown")
    _print_note(found.note)


@app.command()
def get(
    run_id: RunId,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A file or a folder, relative to the workspace.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file.")] = None,
) -> None:
    """Print a file of a run's workspace, or write it to a file.

    You get a folder as a .tar.gz archive. Binary output goes to a file or a pipe, but not to a terminal.
    """
    if output is not None and not output.parent.is_dir():
        raise BadRequest(f"--output: there is no folder {output.parent}", field="output")
    found = with_run(run_id, lambda loom, run: loom.files.read(run, path, by=user_name()))
    if output is None:
        # At a terminal, a file must not control it. A program gets it as it is.
        _print(_for_terminal(found.data) if sys.stdout.isatty() else found.data)
    else:
        _write(output, found.data)
    if found.left_out:
        print_notice(f"{counted(found.left_out, 'file')} left out: not readable, or denied by the run's rules")
    _print_note(found.note)


@app.command()
def put(
    run_id: RunId,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file on this machine, or - for standard input.")],
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="[PATH]",
            help="Where to write it, relative to the workspace. If it ends with a /, it is the folder to write to."
            " Default: FILE's name.",
        ),
    ] = None,
) -> None:
    """Create or replace a file in a run's workspace.

    The agent isn't notified. Use `loom send` to tell it.
    """
    if (path is None or path.endswith("/")) and file == STANDARD_INPUT:
        raise BadRequest("PATH: name the file that standard input goes into", field="PATH")
    target = f"{path or ''}{Path(file).name}" if path is None or path.endswith("/") else path
    content = _content(file)
    written = with_run(run_id, lambda loom, run: loom.files.write(run, target, content, by=user_name()))
    what = "created" if written.is_new else "replaced"
    print_notice(f"{what} {_one_line(written.path)} ({counted(written.bytes, 'byte')})")
    _print_note(written.note)


def _content(file: str) -> bytes:
    try:
        with nullcontext(sys.stdin.buffer) if file == STANDARD_INPUT else Path(file).open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)  # some files have no end
    except OSError as error:
        raise BadRequest(f"FILE: {file} cannot be read: {error.strerror or error}", field="FILE") from None
    if len(content) > MOST_BYTES:
        raise BadRequest(f"FILE: {file} has more than {MOST_BYTES:,} bytes", field="FILE")
    return content


def _print(content: bytes) -> None:
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
    except BrokenPipeError:
        raise  # the reader wants no more
    except OSError as error:
        raise BadRequest(f"the output cannot be written: {error.strerror or error}", field="output") from None


def _write(output: Path, content: bytes) -> None:
    try:
        output.write_bytes(content)
    except OSError as error:
        raise BadRequest(f"--output: {output} cannot be written: {error.strerror or error}", field="output") from None
    print_notice(f"{counted(len(content), 'byte')} written to {output}")


def _for_terminal(content: bytes) -> bytes:
    try:
        return plain(content.decode()).encode()
    except UnicodeDecodeError:
        raise BadRequest(
            f"this isn't text ({len(content):,} bytes): write it to a file with --output", field="output"
        ) from None


def _line(entry: FileEntry) -> str:
    mark = {"folder": "/", "link": "@"}.get(entry.kind, "")
    size = f"{entry.bytes:>12,} bytes" if entry.kind == "file" else " " * 18
    return f"{size}  {_one_line(entry.path)}{mark}"


def _one_line(path: str) -> str:
    """Return a path with everything escaped that isn't printable, such as a line end."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in path)


def _print_note(note: str) -> None:
    if note:
        print_notice(note)
