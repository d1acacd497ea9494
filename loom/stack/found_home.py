"""Find the home of an embedded stack. This module has no other needs, because each client looks for its home."""

import os
import sys
from pathlib import Path
from typing import Final

FILE: Final = "stack.json"
FOLDER: Final = ".loom"
ROOT: Final = 0


def find_home() -> Path:
    """Return the home of the stack that commands in the working directory use, unless LOOM_HOME names one.

    It is `.loom` in the working directory or in the nearest folder above, or else in the user's home directory,
    whichever has a stack. If there is none, `loom up` creates `.loom` in the working directory. Folders of other users
    don't count, because whoever can write to them could send commands to another server.
    """
    here = Path.cwd()
    homes = (folder / FOLDER for folder in (here, *here.parents, Path.home()))
    return next((home for home in homes if is_own(home / FILE)), here / FOLDER)


def is_own(path: Path) -> bool:
    """Return whether the path exists and belongs to this user or to root. On Windows, there are no stacks."""
    if sys.platform == "win32":
        return False
    try:
        return path.stat().st_uid in {os.geteuid(), ROOT}
    except OSError:
        return False
