"""Read, list and digest the files in a skill's folder, without following links out of the folder."""

import os
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, NamedTuple

from loom.activities.toolbox.workspace import confined_open as beneath
from loom.domain.skills.documents import NAMES, BrokenSkill, Document, split

LONGEST: Final = 1024 * 1024
"""Maximum size in bytes of a SKILL.md. The digest covers only the name and size of larger files."""
MOST_FILES: Final = 1000
MOST_FOLDERS: Final = 6
"""Maximum depth of nested folders."""
SCRIPTS: Final = "scripts"
_SKIPPED: Final = frozenset({".git", "__pycache__", "node_modules"})


class SkillFile(NamedTuple):
    """A file of a skill."""

    path: str
    """Path relative to the skill's folder, with forward slashes."""
    size: int


def document_of(root: str) -> tuple[str, Document]:
    """Return the name and the parsed content of the skill's main file. Raises BrokenSkill if the file can't be read."""
    name = next((name for name in NAMES if os.path.lexists(f"{root}/{name}")), NAMES[0])
    try:
        data = read(root, name, LONGEST + 1)
    except OSError as error:
        raise BrokenSkill(f"{name} cannot be read: {error.strerror or error}") from None
    if len(data) > LONGEST:
        raise BrokenSkill(f"{name} is larger than 1 MB: move content that is not always needed to separate files")
    try:
        return name, split(data.decode())
    except UnicodeDecodeError as error:
        raise BrokenSkill(f"{name} is not UTF-8 (byte {error.start}): save it as UTF-8") from None


def read(root: str, path: str, most: int = -1) -> bytes:
    """Return the content of one file, or its first bytes. Raises OSError if the file is outside the folder or doesn't
    exist.
    """
    with opened(root, path) as file:
        return file.read(most)


def opened(root: str, path: str) -> BinaryIO:
    """Open a regular file in the folder for reading. Raises OSError if the file can't be opened."""
    return os.fdopen(beneath.open_file(root, parts_of(path)), "rb")


def parts_of(path: str) -> tuple[str, ...]:
    """Return the components of a file's path. Raises NotAFile if the path leads outside the folder."""
    parts = PurePosixPath(path.removeprefix("./")).parts
    if not parts or ".." in parts or path.startswith("/") or "\0" in path:
        raise beneath.NotAFile("name a file of the skill, by its path in the skill's folder")
    return parts


def files_of(root: str) -> list[SkillFile]:
    """Return all regular files, sorted by path. If there are too many files, return only the first ones. Raises OSError
    if a folder can't be read.
    """
    found: list[SkillFile] = []
    for file in _below(root, ()):
        found.append(file)
        if len(found) == MOST_FILES:
            break
    return sorted(found)


def digest_of(root: str) -> str:
    """Return 12 hex digits that identify the skill's files. For large data files, only the name and size are included.
    Raises OSError if a file can't be read.
    """
    whole = blake2b(digest_size=6)
    for file in files_of(root):
        content = read(root, file.path) if file.size <= LONGEST else b""
        whole.update(f"{file.path}\0{file.size}\0".encode("utf-8", "surrogateescape"))
        whole.update(blake2b(content, digest_size=16).digest())
    return whole.hexdigest()


def strange_files(root: Path) -> Iterator[str]:
    """Yield entries that a skill shouldn't contain, such as links, pipes and devices, each with its type."""
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            if path.is_symlink():
                yield f"{path.relative_to(root)} is a link"
            elif not path.is_dir() and not path.is_file():
                yield f"{path.relative_to(root)} is not a regular file"


def _below(root: str, parts: tuple[str, ...]) -> Iterator[SkillFile]:
    for entry in beneath.entries(root, parts):
        if entry.kind == "file" and not entry.name.endswith(".pyc"):
            yield SkillFile("/".join((*parts, entry.name)), entry.size)
        elif entry.kind == "folder" and entry.name not in _SKIPPED and len(parts) < MOST_FOLDERS:
            yield from _below(root, (*parts, entry.name))
