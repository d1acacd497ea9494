"""Guard the files that other programs run automatically or follow as instructions, and files with secrets.

`loom.domain.permissions.obeyed` lists their names. A worker adds the files that it reads itself.
"""

from fnmatch import fnmatchcase

from loom.domain.permissions.command_words import alternatives, program_of
from loom.domain.permissions.guards.removal import REMOVERS
from loom.domain.permissions.obeyed import DEFINITIONS, NAMES, is_obeyed, is_remade
from loom.domain.permissions.subjects import Place, Subject, expanded, normal


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


def protected_here(path: str, place: Place, *, is_removed: bool = False) -> str:
    """Return the same for a path that is absolute or starts at the workspace. What this worker reads is protected,
    too.
    """
    if found := protected(path, is_removed=is_removed):
        return found
    whole = normal(expanded(path, place.home), place.workspace)
    top = f"{place.workspace}/"
    shown = whole.removeprefix(top) if place.workspace else path
    if DEFINITIONS.fullmatch(shown.lower()):
        return shown
    parts = whole.split("/")
    above = ("/".join(parts[:length]) for length in range(2, len(parts) + 1))
    return next((each.removeprefix(top) for each in above if each in place.obeyed), "")


def written_by(subject: Subject, place: Place) -> str:
    """Return the protected part of a file that a command writes, or an empty string."""
    is_removed = program_of(subject.words) in REMOVERS
    written = [file for file in subject.files if file.tool == "write_file"]
    named = (protected_here(file.text, place, is_removed=is_removed) for file in written)
    spread = (_spread(word, place) for file in written if file.opaque for word in alternatives(file.text))
    return next((name for name in (*named, *spread) if name), "")


def _spread(path: str, place: Place) -> str:
    """Return the protected part that a glob with a leading dot may match, or an empty string. Other globs are too wide
    for a decision.
    """
    if found := protected_here(path, place):
        return found
    globs = [part.lower() for part in path.split("/") if part.startswith(".") and set(part) & set("*?[")]
    return next((name for glob in globs for name in sorted(NAMES) if fnmatchcase(name, glob)), "")
