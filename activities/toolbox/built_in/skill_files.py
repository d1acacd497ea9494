"""Read, list and digest the files of a skill's folder without following a link out of it."""

import os
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, NamedTuple

from loom.activities.toolbox.workspace import confined_open as beneath
from loom.domain.skills.documents import NAMES, BrokenSkill, Document, split

LONGEST: Final = 1024 * 1024
"""Maximum bytes of a SKILL.md. Larger files count by name and size in the digest."""
MOST_FILES: Final = 1000
MOST_FOLDERS: Final = 6
"""Maximum depth of folders."""
SCRIPTS: Final = "scripts"
_SKIPPED: Final = frozenset({".git", "__pycache__", "node_modules"})


class SkillFile(NamedTuple):
    """A file of a skill."""

    path: str
    """Relative to its folder, with slashes."""
    size: int


def document_of(root: str) -> tuple[str, Document]:
    """Whether this is a PDF whose data is present."""
    name = next((name for name in NAMES if os.path.lexists(f"{root}/{name}")), NAMES[0])
    try:
        data = read(root, name, LONGEST + 1)
    except OSError as error:
        raise BrokenSkill(f"{name} cannot be read: {error.strerror or error}") from None
    if len(data) > LONGEST:
        raise BrokenSkill(f"{name} is larger than 1 MB: move what is not always needed into files of their own")
    try:
        return name, split(data.decode())
    except UnicodeDecodeError as error:
        raise BrokenSkill(f"{name} is not UTF-8 (byte {error.start}): save it as such") from None


def read(root: str, path: str, most: int = -1) -> bytes:
    """The content of one file, or its first bytes; raises OSError if it is outside or does not exist."""
    with opened(root, path) as file:
        return file.read(most)


def opened(root: str, path: str) -> BinaryIO:
    """A regular file of the folder, opened for reading; raises OSError."""
    return os.fdopen(beneath.open_file(root, parts_of(path)), "rb")


def parts_of(path: str) -> tuple[str, ...]:
    """The path components of a file; raises NotAFile if it leads elsewhere."""
    parts = PurePosixPath(path.removeprefix("./")).parts
    if not parts or ".." in parts or path.startswith("/") or "\0" in path:
        raise beneath.NotAFile("name a file of the skill, by its path in the skill's folder")
    return parts


def files_of(root: str) -> list[SkillFile]:
    """All regular files, sorted by path; only the first ones if there are too many. Raises OSError."""
    found: list[SkillFile] = []
    for file in _below(root, ()):
        found.append(file)
        if len(found) == MOST_FILES:
            break
    return sorted(found)


def digest_of(root: str) -> str:
    """12 hex digits over the skill's files. Large data files count by name and size. Raises OSError."""
    whole = blake2b(digest_size=6)
    for file in files_of(root):
        content = read(root, file.path) if file.size <= LONGEST else b""
        whole.update(f"{file.path}\0{file.size}\0".encode("utf-8", "surrogateescape"))
        whole.update(blake2b(content, digest_size=16).digest())
    return whole.hexdigest()


def strange_files(root: Path) -> Iterator[str]:
    """What a skill should not contain: links, pipes, devices, each with its type."""
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
