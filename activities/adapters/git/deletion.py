"""Delete folders that an agent has worked in, whatever permissions it has set in them, and however deep they are."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

from loom.activities.ports import StoreUnavailable

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ALL: Final = 0o700


def delete(folder: Path) -> None:
    """Delete a folder, which may not exist. Raises StoreUnavailable if something in it can't be deleted."""
    if not os.path.lexists(folder):
        return
    try:
        if folder.is_symlink() or not folder.is_dir():
            folder.unlink()
        else:
            _empty(folder)
            folder.rmdir()
    except OSError as error:
        raise StoreUnavailable(
            f"{folder} can't be deleted ({error.strerror}): delete it by hand, and check who owns the files in it"
        ) from None


def _empty(folder: Path) -> None:
    """Delete what is in the folder. Folders below others move up into this one, so that no path is ever too long."""
    _permit(folder.name, parent := os.open(folder.parent, _FOLDER))
    try:
        top = os.open(folder.name, _FOLDER, dir_fd=parent)
    finally:
        os.close(parent)
    try:
        waiting = _unlink_files(top)
        while waiting:
            name = waiting.pop()
            _permit(name, top)
            opened = os.open(name, _FOLDER, dir_fd=top)
            try:
                for below in _unlink_files(opened):
                    _permit(below, opened)
                    moved = uuid4().hex
                    os.rename(below, moved, src_dir_fd=opened, dst_dir_fd=top)
                    waiting.append(moved)
            finally:
                os.close(opened)
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def _unlink_files(folder: int) -> list[str]:
    """Delete everything in the open folder except the folders in it, whose names are returned."""
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
    return [name for name, is_folder in found if is_folder]


def _permit(name: str, folder: int) -> None:
    """Let the owner delete what is in this folder of the open folder. A link is not followed."""
    with suppress(OSError, NotImplementedError):  # another user's folder
        os.chmod(name, _ALL, dir_fd=folder, follow_symlinks=False)
