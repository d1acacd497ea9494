"""Guard the files that other programs run automatically or follow as instructions, and files with secrets.

`loom.domain.permissions.obeyed` lists their names.
"""

from fnmatch import fnmatchcase

from loom.domain.permissions.command_words import alternatives, program_of
from loom.domain.permissions.guards.removal import REMOVERS
from loom.domain.permissions.obeyed import NAMES, is_obeyed, is_remade
from loom.domain.permissions.subjects import Subject


def protected(path: str, *, is_removed: bool = False) -> str:
    """Return the part of a path that controls other programs or contains secrets, or an empty string."""
    folder = ""
    for name in path.lower().split("/"):
        if is_obeyed(name) or (not is_removed and is_remade(name)):
            return name
        if folder and (is_obeyed(name, folder) or (not is_removed and is_remade(name, folder))):
            return f"{folder}/{name}"
        folder = name
    return ""


def written_by(subject: Subject) -> str:
    """Return the protected part of a file that a command writes, or an empty string."""
    is_removed = program_of(subject.words) in REMOVERS
    written = [file for file in subject.files if file.tool == "write_file"]
    named = (protected(file.text, is_removed=is_removed) for file in written)
    spread = (_spread(word) for file in written if file.opaque for word in alternatives(file.text))
    return next((name for name in (*named, *spread) if name), "")


def _spread(path: str) -> str:
    """Return the protected part that a glob with a leading dot may match, or an empty string. Other globs are too wide
    for a decision.
    """
    if found := protected(path):
        return found
    globs = [part.lower() for part in path.split("/") if part.startswith(".") and set(part) & set("*?[")]
    return next((name for glob in globs for name in sorted(NAMES) if fnmatchcase(name, glob)), "")
