"""Tools that read and write files in the workspace: read_file, write_file, edit_file, delete_file,
list_dir.

Files are written on the event loop, not in a thread. A thread would keep running after its call was cancelled, and
would change the file later. They are read in a thread, because a disk that doesn't respond must not block the worker.
"""

import asyncio
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

from pydantic import Field

from loom.activities.ports import Tool, ToolContext, ToolOutput
from loom.activities.toolbox.built_in.edit_feedback import Parsers, changed_lines, parse_error, why_missed
from loom.activities.toolbox.built_in.line_ends import with_line_ends_of
from loom.activities.toolbox.function_tool import Arguments, FunctionTool, tool_spec
from loom.activities.toolbox.truncation import RESULT_LIMIT
from loom.activities.toolbox.workspace import paths as workspace
from loom.domain.core.errors import BadRequest, ToolValidationError
from loom.domain.core.media import MOST_BYTES, recognized, sniffed
from loom.domain.core.messages import Part
from loom.domain.core.tool_calls import Effect
from loom.domain.permissions.subjects import Subject

_EDITABLE: Final = 10 * 1024 * 1024
_LINE: Final = 2000
_NOTE_ROOM: Final = 120
_LISTED: Final = 1000


class ReadFile(Arguments):
    """Arguments of read_file."""

    path: str
    offset: int = Field(default=1, ge=1, description="First line")
    limit: int = Field(default=2000, ge=1, description="Lines")


class WriteFile(Arguments):
    """Arguments of write_file."""

    path: str
    content: str


class EditFile(Arguments):
    """Arguments of edit_file."""

    path: str
    old_string: str = Field(description="Exactly as in the file, without line numbers. It must occur once")
    new_string: str
    replace_all: bool = False


class DeleteFile(Arguments):
    """Arguments of delete_file."""

    path: str


class ListDir(Arguments):
    """Arguments of list_dir."""

    path: str = "."


async def _read(home: Path | None, arguments: ReadFile, context: ToolContext) -> str | ToolOutput:
    return await asyncio.to_thread(_read_now, home, arguments, context)


def _read_now(home: Path | None, arguments: ReadFile, context: ToolContext) -> str | ToolOutput:
    real = workspace.resolve(context.workspace, arguments.path, home=home)
    with workspace.open_file(context.workspace, real) as file:
        if sniffed(_start(file)):
            return _as_part(file, workspace.shown(context.workspace, real))
        return page(file, arguments)


def _as_part(file: BinaryIO, name: str) -> ToolOutput:
    """Return an image, a PDF or a recording for the model to look at."""
    data = file.read(MOST_BYTES + 1)
    try:
        what = recognized(data, name)
    except BadRequest as error:
        raise ToolValidationError(error.message) from None
    part = Part(type=what.type, media_type=what.media_type, data=b64encode(data).decode(), name=name)
    return ToolOutput(text=f"{name}: {what.media_type}, {len(data):,} bytes", parts=(part,))


def page(file: BinaryIO, arguments: ReadFile) -> str:
    """Return the requested lines with their numbers. Raises ToolValidationError if the file is binary or the offset is
    past its end.
    """
    _refuse_binary(file, arguments.path)
    lines = enumerate(file, start=1)
    skipped = sum(1 for _ in islice(lines, arguments.offset - 1))
    shown: list[str] = []
    length = 0
    for number, raw in islice(lines, arguments.limit):
        line = f"{number:6}\t{_cut(raw.decode('utf-8', 'replace').rstrip(chr(13) + chr(10)))}"
        length += len(line) + 1
        if length > RESULT_LIMIT - _NOTE_ROOM and shown:
            return _with_note(shown, number)
        shown.append(line)
    if not shown:
        return _nothing_there(arguments, skipped)
    following = next(lines, None)
    return _with_note(shown, following[0]) if following else "\n".join(shown)


def _cut(line: str) -> str:
    return line if len(line) <= _LINE else f"{line[:_LINE]}… ({len(line) - _LINE} more characters in this line)"


def _with_note(shown: list[str], following: int) -> str:
    return "\n".join(shown) + f"\n(the file continues: read on with offset={following})"


def _nothing_there(arguments: ReadFile, lines: int) -> str:
    if arguments.offset > 1:
        raise ToolValidationError(f"{arguments.path} has only {lines} lines: use an offset of at most {lines}")
    return "(the file is empty)"


def _refuse_binary(file: BinaryIO, path: str) -> None:
    if b"\0" in _start(file):
        raise ToolValidationError(f"{path} is a binary file: look at it with bash (file, xxd, strings) if you need to")


def _start(file: BinaryIO) -> bytes:
    start = file.read(8192)
    file.seek(0)
    return start


def _size(file: BinaryIO) -> int:
    size = file.seek(0, 2)
    file.seek(0)
    return size


async def _write(home: Path | None, arguments: WriteFile, context: ToolContext) -> str:
    real = workspace.resolve(context.workspace, arguments.path, home=home, must_exist=False)
    data = arguments.content.encode()
    is_new = workspace.replace_file(context.workspace, real, data)
    name = workspace.shown(context.workspace, real)
    return f"{'created' if is_new else 'overwrote'} {name} ({_lines(arguments.content)} lines, {len(data)} bytes)"


def _lines(text: str) -> int:
    return text.count("\n") + (not text.endswith("\n") and text != "")


async def _edit(home: Path | None, parsers: Parsers, arguments: EditFile, context: ToolContext) -> ToolOutput:
    if not arguments.old_string:
        raise ToolValidationError("`old_string` is empty: give the text to replace, or use write_file for a new file")
    if arguments.old_string == arguments.new_string:
        raise ToolValidationError("`old_string` and `new_string` are the same: nothing would change")
    real = workspace.resolve(context.workspace, arguments.path, home=home)
    text = _editable_text(context.workspace, real)
    old, new = with_line_ends_of(text, arguments.old_string, arguments.new_string)
    lines = list(_occurrences(text, old))
    if not lines:
        reason = await asyncio.to_thread(why_missed, text, arguments.old_string, arguments.new_string)
        raise ToolValidationError(f"`old_string` is not in {arguments.path}: {reason}")
    if len(lines) > 1 and not arguments.replace_all:
        raise ToolValidationError(
            f"`old_string` occurs {len(lines)} times in {arguments.path} (lines {_numbers(lines)}): include more lines "
            "around it until it is unique, or set replace_all"
        )
    after = text.replace(old, new)
    workspace.replace_file(context.workspace, real, after.encode())
    name = workspace.shown(context.workspace, real)
    said = f"edited {name}: {len(lines)} replacement(s) at line{'s' if len(lines) > 1 else ''} {_numbers(lines)}"
    shown = await asyncio.to_thread(changed_lines, after, lines, old, new)
    wrong = await asyncio.to_thread(parse_error, name, text, after, parsers)
    return ToolOutput(text="\n".join(filter(None, (said, shown, wrong))), is_warning=bool(wrong))


def _editable_text(root: Path, real: Path) -> str:
    name = workspace.shown(root, real)
    with workspace.open_file(root, real) as file:
        if _size(file) > _EDITABLE:
            raise ToolValidationError(f"{name} is larger than 10 MB: change it with bash (sed, a script)")
        _refuse_binary(file, name)
        try:
            return file.read().decode()
        except UnicodeDecodeError:
            raise ToolValidationError(f"{name} is not UTF-8: change it with bash (sed, iconv)") from None


def _occurrences(text: str, old: str) -> Iterator[int]:
    """Yield the line number of each occurrence of `old`."""
    line, seen = 1, 0
    while (at := text.find(old, seen)) >= 0:
        line += text.count("\n", seen, at)
        yield line
        line += old.count("\n")
        seen = at + len(old)


def _numbers(lines: list[int]) -> str:
    return ", ".join(str(line) for line in lines[:10]) + (", …" if len(lines) > 10 else "")


async def _delete(home: Path | None, arguments: DeleteFile, context: ToolContext) -> str:
    path = workspace.unresolved(context.workspace, arguments.path, home=home)
    workspace.delete_file(context.workspace, path)
    return f"deleted {workspace.shown(context.workspace, path)}"


async def _list(home: Path | None, arguments: ListDir, context: ToolContext) -> str:
    return await asyncio.to_thread(_list_now, home, arguments, context)


def _list_now(home: Path | None, arguments: ListDir, context: ToolContext) -> str:
    real = workspace.resolve(context.workspace, arguments.path, home=home)
    found = workspace.entries(context.workspace, real)
    marks = {"folder": "/", "link": "@", "other": " (not a file)"}
    lines = [entry.name + marks.get(entry.kind, f" ({entry.size} bytes)") for entry in found[:_LISTED]]
    if len(found) > _LISTED:
        lines.append(f"({len(found) - _LISTED} more: use glob with a pattern)")
    return "\n".join(lines) or "(the folder is empty)"


def _named(
    home: Path | None, arguments: ReadFile | WriteFile | EditFile | DeleteFile | ListDir, root: Path
) -> tuple[Subject, ...]:
    return workspace.subjects(root, arguments.path, home=home)


def file_tools(timeout: float, home: Path | None = None, parsers: Parsers | None = None) -> tuple[Tool, ...]:
    """Return the tools in this module. `home` contains Loom's own state, which they can't access. `parsers`
    check files after edits, in addition to Python, JSON and TOML.
    """
    touches = partial(_named, home)
    return (
        FunctionTool(
            spec=tool_spec(
                "read_file",
                "Read a text file with line numbers, or look at an image, a PDF or a recording. Paths are relative to "
                "the workspace.",
                ReadFile,
                effect=Effect.READ,
                timeout=timeout,
            ),
            arguments=ReadFile,
            function=partial(_read, home),
            touches=touches,
            quick=True,
        ),
        FunctionTool(
            spec=tool_spec(
                "write_file",
                "Create or overwrite a file. To change a part of it, use edit_file.",
                WriteFile,
                effect=Effect.IDEMPOTENT,
                timeout=timeout,
            ),
            arguments=WriteFile,
            function=partial(_write, home),
            touches=touches,
        ),
        # The effect is `once`, because a second attempt after a crash wouldn't find the old text, and would wrongly
        # report a failure.
        FunctionTool(
            spec=tool_spec(
                "edit_file",
                "Replace text in a file that you have read.",
                EditFile,
                effect=Effect.ONCE,
                timeout=timeout,
            ),
            arguments=EditFile,
            function=partial(_edit, home, parsers or {}),
            touches=touches,
        ),
        # `once` for the same reason: a second attempt wouldn't find the file.
        FunctionTool(
            spec=tool_spec(
                "delete_file",
                "Delete a file or a link.",
                DeleteFile,
                effect=Effect.ONCE,
                timeout=timeout,
            ),
            arguments=DeleteFile,
            function=partial(_delete, home),
            touches=touches,
        ),
        FunctionTool(
            spec=tool_spec(
                "list_dir",
                "List a folder. Folders end in /, links in @.",
                ListDir,
                effect=Effect.READ,
                timeout=timeout,
            ),
            arguments=ListDir,
            function=partial(_list, home),
            touches=touches,
            quick=True,
        ),
    )
