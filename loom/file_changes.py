"""Show what a call of write_file or edit_file would change, if its workspace is on this machine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from loom.activities.toolbox.built_in.line_ends import with_line_ends_of
from loom.activities.toolbox.workspace import paths
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
    if not Path(workspace).is_dir():
        return None
    try:
        before, is_new = _text(Path(workspace).resolve(), path)
    except (LoomError, OSError, UnicodeDecodeError):
        return None
    after = _written(arguments) if tool == "write_file" else _edited(before, arguments)
    if before is None or after is None:
        return None
    from difflib import unified_diff  # noqa: PLC0415 - only for calls that change a file

    names = ("/dev/null" if is_new else f"a/{path}", f"b/{path}")
    return "\n".join(unified_diff(_lines(before), _lines(after), *names, lineterm=""))


def _lines(text: str) -> list[str]:
    """Return the lines of a text. Only a newline ends a line, so that other characters that do so become visible."""
    lines = text.split("\n")
    if not lines[-1]:
        return lines[:-1]
    return [*lines[:-1], f"{lines[-1]}\n\\ No newline at end of file"]


def _text(workspace: Path, path: str) -> tuple[str | None, bool]:
    """Return a file's text, and whether it is new. Files outside the workspace aren't read, not even through links."""
    real = paths.resolve(workspace, path, home=None, must_exist=False)
    if not real.exists():
        return "", True
    with paths.open_file(workspace, real) as file:
        data = file.read(LARGEST + 1)
    return (data.decode() if len(data) <= LARGEST else None), False


def _written(arguments: Mapping[str, Any]) -> str | None:
    content = arguments.get("content")
    return content if isinstance(content, str) else None


def _edited(before: str | None, arguments: Mapping[str, Any]) -> str | None:
    old, new = arguments.get("old_string"), arguments.get("new_string")
    if before is None or not isinstance(old, str) or not isinstance(new, str) or not old:
        return None
    old, new = with_line_ends_of(before, old, new)
    is_unique = before.count(old) == 1 or bool(arguments.get("replace_all"))
    return before.replace(old, new) if old in before and is_unique else None
