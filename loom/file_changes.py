"""Show what a call of write_file or edit_file would change, if its workspace is on this machine."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from loom.activities.toolbox.built_in.text_edits import FileText, edit_for, file_text
from loom.activities.toolbox.workspace.text_bytes import PLAIN, is_binary, readable
from loom.domain.core.errors import LoomError

LARGEST: Final = 1024 * 1024
"""Maximum size in bytes of a file that is compared."""


def change_of(tool: str, arguments: Mapping[str, Any], workspace: str) -> str | None:
    """Return the call's change as a unified diff. An empty diff means that nothing would change.

    Return None if the change isn't known: the workspace isn't known, the call doesn't write one file, the file can't be
    read here, or the text to replace isn't in it.
    """
    path = arguments.get("path")
    if not workspace or tool not in ("write_file", "edit_file") or not isinstance(path, str):
        return None
    if not hasattr(os, "O_PATH") or not Path(workspace).is_dir():  # workspaces are on Linux
        return None
    from loom.activities.toolbox.workspace import paths  # noqa: PLC0415 - can be imported on Linux only

    try:
        root = Path(workspace).resolve()
        real = paths.resolve(root, path, home=None, must_exist=False)
        before, is_new = _text(root, real)
    except (LoomError, OSError, ValueError):
        return None
    if before is None:
        return None
    after = _written(before, arguments) if tool == "write_file" else _edited(before, arguments)
    if after is None:
        return None
    from difflib import unified_diff  # noqa: PLC0415 - only for calls that change a file

    name = paths.shown(root, real)
    names = ("/dev/null" if is_new else f"a/{name}", f"b/{name}")
    return "\n".join(unified_diff(_lines(before.text), _lines(after), *names, lineterm=""))


def _lines(text: str) -> list[str]:
    """Return the lines of a text. Only a newline ends a line, so that other characters that do so become visible."""
    lines = readable(text).split("\n")
    if not lines[-1]:
        return lines[:-1]
    return [*lines[:-1], f"{lines[-1]}\n\\ No newline at end of file"]


def _text(workspace: Path, real: Path) -> tuple[FileText | None, bool]:
    """Return a file's text, and whether it is new. Files outside the workspace aren't read, not even through links."""
    if not real.exists():
        return FileText(text="", form=PLAIN), True
    from loom.activities.toolbox.workspace import paths  # noqa: PLC0415 - as above

    with paths.open_file(workspace, real) as file:
        data = file.read(LARGEST + 1)
    return (None if len(data) > LARGEST or is_binary(data) else file_text(data)), False


def _written(before: FileText, arguments: Mapping[str, Any]) -> str | None:
    content = arguments.get("content")
    return before.with_own_line_ends(content) if isinstance(content, str) else None


def _edited(before: FileText, arguments: Mapping[str, Any]) -> str | None:
    old, new = arguments.get("old_string"), arguments.get("new_string")
    if not isinstance(old, str) or not isinstance(new, str) or not old:
        return None
    edit = edit_for(before, old, new)
    places = edit.places(before.text)
    is_unique = len(places) == 1 or bool(arguments.get("replace_all"))
    return edit.apply(before.text, places) if places and is_unique else None
