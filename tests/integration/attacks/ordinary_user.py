"""Programs of another, ordinary user of the same machine. Only root can start them."""

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

NOBODY: Final = 65534


def interpreter(folder: Path) -> str | None:
    """A Python that an ordinary user may start and that has our packages: homes are closed to others."""
    found = shutil.which(f"python3.{sys.version_info[1]}", path="/usr/bin:/usr/local/bin")
    for candidate in filter(None, (sys.executable, found)):
        with suppress(PermissionError):
            if not subprocess.call([candidate, "-c", "import pydantic, temporalio"], **as_nobody(folder)):
                return candidate
    return None


def as_nobody(folder: Path) -> dict[str, Any]:
    """The arguments of `subprocess` for a program of this user, at work in this folder."""
    packages = [str(Path(__file__).parents[3]), *(path for path in sys.path if path.endswith("site-packages"))]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(packages), "LOOM_ATTACKED": "secret"}
    return {
        "user": NOBODY,
        "group": NOBODY,
        "extra_groups": [],
        "env": {**environment, "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        "cwd": folder,
    }
