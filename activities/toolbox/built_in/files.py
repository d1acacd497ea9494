"""Tools that read and write files in the workspace: read_file, write_file, edit_file, delete_file,
list_dir.

Files are written on the event loop, not in a thread. A thread would keep running after its call was cancelled, and
would change the file later. They are read in a thread, because a disk that doesn't respond must not block the worker.
"""

import asyncio
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

from pydantic import Field

from loom.activities.ports import Tool, ToolContext, ToolOutput
from loom.activities.toolbox.built_in.edit_feedback import Parsers, changed_lines, parse_error, why_missed
from loom.activities.toolbox.built_in.text_edits import Edit, FileText, edit_for, file_text, would_mix_encodings
from loom.activities.toolbox.function_tool import Arguments, FunctionTool, tool_spec
from loom.activities.toolbox.truncation import RESULT_LIMIT
from loom.activities.toolbox.workspace import paths as workspace
from loom.activities.toolbox.workspace.text_bytes import (
    form_of,
    has_other_bytes,
    is_binary,
    line_numbers,
    one_line_end,
    plain_lines,
    readable,
)
from loom.domain.core.errors import BadRequest, LoomError, ToolValidationError
from loom.domain.core.media import MOST_BYTES, recognized, sniffed
from loom.domain.core.messages import Part
from loom.domain.core.tool_calls import Effect
from loom.domain.permissions.subjects import Subject

_EDITABLE: Final = 10 * 1024 * 1024
_LINE: Final = 2000
_NOTE_ROOM: Final = 220
_LISTED: Final = 1000
_HIDDEN_BYTES: Final = r"\xNN"
_OTHER_BYTES: Final = f"\n(not UTF-8: other bytes are shown as {_HIDDEN_BYTES}, and edit_file keeps them)"
_LINE_ENDS: Final = {"\r\n": "CRLF line ends", "\r": "CR line ends"}


class ReadFile(Arguments):
    """Arguments of read_file."""

    path: workspace.PathText
    offset: int = Field(default=1, ge=1, description="First line")
    limit: int = Field(default=2000, ge=1, description="Lines")


class WriteFile(Arguments):
    """Arguments of write_file."""

    path: workspace.PathText
    content: str


class EditFile(Arguments):
    """Arguments of edit_file."""

    path: workspace.PathText
    old_string: str = Field(description="Exactly as in the file, without line numbers. It must occur once")
    new_string: str
    replace_all: bool = False


class DeleteFile(Arguments):
    """Arguments of delete_file."""

    path: workspace.PathText


class ListDir(Arguments):
    """Arguments of list_dir."""

    path: workspace.PathText = "."


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
    file = _as_utf8(file, arguments.path)
    lines = enumerate(file, start=1)
    skipped = sum(1 for _ in islice(lines, arguments.offset - 1))
    shown: list[str] = []
    length, note = 0, ""
    for number, raw in islice(lines, arguments.limit):
        text = raw.decode("utf-8", "surrogateescape").rstrip("\r\n")
        note = note or (_OTHER_BYTES if has_other_bytes(text) else "")
        line = f"{number:6}\t{_cut(readable(text))}"
        length += len(line) + 1
        if length > RESULT_LIMIT - _NOTE_ROOM and shown:
            return _with_note(shown, number) + note
        shown.append(line)
    if not shown:
        return _nothing_there(arguments, skipped)
    following = next(lines, None)
    return (_with_note(shown, following[0]) if following else "\n".join(shown)) + note


def _as_utf8(file: BinaryIO, path: str) -> BinaryIO:
    """Return the file's text as UTF-8 with a newline after each line, without a byte order mark."""
    start = _start(file)
    form = form_of(start)
    is_large = _size(file) > _EDITABLE
    if form.encoding == "utf-8" and (is_large or b"\r" not in start or b"\n" in start):
        file.seek(len(form.mark))
        return file
    if is_large:
        raise ToolValidationError(
            f"{path} is larger than 10 MB, and has {form.description}: convert it with bash (iconv)"
        )
    text = _text_of(file, path).text
    if one_line_end(text) == "\r":
        text = plain_lines(text)
    return BytesIO(text.encode("utf-8", "surrogateescape" if form.encoding == "utf-8" else "replace"))


def _cut(line: str) -> str:
    return line if len(line) <= _LINE else f"{line[:_LINE]}… ({len(line) - _LINE} more characters in this line)"


def _with_note(shown: list[str], following: int) -> str:
    return "\n".join(shown) + f"\n(the file continues: read on with offset={following})"


def _nothing_there(arguments: ReadFile, lines: int) -> str:
    if arguments.offset > 1:
        raise ToolValidationError(f"{arguments.path} has only {lines} lines: use an offset of at most {lines}")
    return "(the file is empty)"


def _refuse_binary(file: BinaryIO, path: str) -> None:
    if is_binary(_start(file)):
        raise ToolValidationError(
            f"{path} is a binary file: look at it with bash (file, xxd, strings; iconv for UTF-16)"
        )


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
    before = _replaced(context.workspace, real)
    content = arguments.content if before is None else before.with_own_line_ends(arguments.content)
    data = content.encode() if before is None else before.bytes_of(content)
    is_new = workspace.replace_file(context.workspace, real, data)
    name = workspace.shown(context.workspace, real)
    said = f"{'created' if is_new else 'overwrote'} {name} ({_lines(arguments.content)} lines, {len(data)} bytes)"
    return "; ".join((said, *(() if before is None else _kept(before, content))))


def _replaced(root: Path, real: Path) -> FileText | None:
    """Return the text of the file that is replaced, or None if there is none whose form could be kept."""
    try:
        with workspace.open_file(root, real) as file:
            return None if _size(file) > _EDITABLE or is_binary(_start(file)) else file_text(file.read())
    except (LoomError, ValueError):
        return None


def _kept(before: FileText, content: str) -> Iterator[str]:
    """Yield what is special about the form of the file before, and whether the new content has it, too."""
    if before.form.description:
        yield f"as before, it has {before.form.description}"
    if has_other_bytes(before.text):
        yield "it was not UTF-8, and is now"
    end = one_line_end(before.text)
    if end is None:
        yield "it had several kinds of line ends, and now has those of `content`"
    elif end == "\r" != one_line_end(content):
        yield f"it had {_LINE_ENDS[end]}, and now has those of `content`"
    elif end in _LINE_ENDS and one_line_end(content) == end:
        yield f"as before, it has {_LINE_ENDS[end]}"


def _lines(text: str) -> int:
    return text.count("\n") + (not text.endswith("\n") and text != "")


async def _edit(home: Path | None, parsers: Parsers, arguments: EditFile, context: ToolContext) -> ToolOutput:
    if not arguments.old_string:
        raise ToolValidationError("`old_string` is empty: give the text to replace, or use write_file for a new file")
    if arguments.old_string == arguments.new_string:
        raise ToolValidationError("`old_string` and `new_string` are the same: nothing would change")
    real = workspace.resolve(context.workspace, arguments.path, home=home)
    name = workspace.shown(context.workspace, real)
    file = _editable(context.workspace, real)
    edit = edit_for(file, arguments.old_string, arguments.new_string)
    places = edit.places(file.text)
    lines = list(line_numbers(file.text, (start for start, _ in places)))
    if not places:
        raise ToolValidationError(f"`old_string` is not in {name}: {await asyncio.to_thread(_why_missed, file, edit)}")
    if len(places) > 1 and not arguments.replace_all:
        raise ToolValidationError(
            f"`old_string` occurs {len(places)} times in {name} (lines {_numbers(lines)}): include more lines "
            "around it until it is unique, or set replace_all"
        )
    if would_mix_encodings(file, edit.new):
        raise ToolValidationError(
            f"{name} is not UTF-8, and `new_string` has characters whose bytes in its encoding are not known: use only "
            "ASCII here, or convert the file first with bash (file, iconv)"
        )
    after = edit.apply(file.text, places)
    workspace.replace_file(context.workspace, real, file.bytes_of(after))
    said = f"edited {name}: {len(places)} replacement(s) at line{'s' if len(places) > 1 else ''} {_numbers(lines)}"
    told = await asyncio.to_thread(_told, name, file.text, after, parsers, changed=(lines, edit))
    return ToolOutput(text="\n".join(filter(None, (said, *told))), is_warning=bool(told[1]))


def _why_missed(file: FileText, edit: Edit) -> str:
    if edit.is_there_with_other_line_ends(file.text):
        return "only line ends differ: send each line end as it is in the file, or as a newline"
    reason = why_missed(*map(readable, map(plain_lines, (file.text, edit.old, edit.new))))
    if has_other_bytes(file.text) and ("\\x" in edit.old or not edit.old.isascii()):
        reason += f"\nBytes that are shown as {_HIDDEN_BYTES} cannot be in `old_string`: choose text beside them"
    return reason


def _told(name: str, before: str, after: str, parsers: Parsers, *, changed: tuple[list[int], Edit]) -> tuple[str, str]:
    """Return the changed lines, and a sentence if the file doesn't parse after the edit."""
    lines, edit = changed
    shown = changed_lines(readable(plain_lines(after)), lines, plain_lines(edit.old), plain_lines(edit.new))
    return shown, "" if has_other_bytes(before) else parse_error(name, before, after, parsers)


def _editable(root: Path, real: Path) -> FileText:
    name = workspace.shown(root, real)
    with workspace.open_file(root, real) as file:
        if _size(file) > _EDITABLE:
            raise ToolValidationError(f"{name} is larger than 10 MB: change it with bash (sed, a script)")
        _refuse_binary(file, name)
        return _text_of(file, name)


def _text_of(file: BinaryIO, name: str) -> FileText:
    data = file.read()
    try:
        return file_text(data)
    except ValueError:
        raise ToolValidationError(
            f"{name} has the byte order mark of {form_of(data).encoding.upper()}, but is not valid in it: use bash"
        ) from None


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
    lines = [readable(entry.name) + marks.get(entry.kind, f" ({entry.size} bytes)") for entry in found[:_LISTED]]
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
