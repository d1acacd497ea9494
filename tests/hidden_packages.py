"""Python programs for which some of the installed packages don't exist, as in a smaller installation."""

from collections.abc import Collection
from typing import Final

THIN: Final = (
    "loom",
    "temporalio",
    "pydantic",
    *("pydantic_core", "annotated_types", "typing_extensions", "typing_inspection", "google", "nexusrpc"),
)
"""The client, what it requires, and what that brings."""
POSIX: Final = ("fcntl", "grp", "pwd", "resource", "termios")
"""Modules of the standard library that Windows doesn't have."""
LINUX: Final = (
    *("O_PATH", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK"),
    *("geteuid", "getuid", "getsid", "killpg", "fchmod", "uname", "getloadavg"),
)
"""Attributes of `os` that macOS or Windows doesn't have."""

_HIDING: Final = """
import sys

class Shown:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        ours = top in sys.stdlib_module_names or top.startswith("_sysconfigdata") or top in {shown!r}
        is_hidden = top in {hidden!r} or ({shown!r} and not ours)
        return None if is_hidden else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Shown(finder) for finder in sys.meta_path if hasattr(finder, "find_spec")]
"""
_ELSEWHERE: Final = """
import ctypes, os, pydantic.main, selectors, subprocess, tempfile, temporalio.client  # they see which platform it is
sys.platform = "other"
for name in {lacking!r}:
    if hasattr(os, name):
        delattr(os, name)
"""


def hiding(*, shown: Collection[str] = (), hidden: Collection[str] = ()) -> str:
    """Return the beginning of a program that finds none of the hidden modules, and of other packages only those shown.

    Without `shown`, it finds all other packages.
    """
    return _HIDING.format(shown=tuple(shown), hidden=tuple(hidden))


THIN_CLIENT: Final = hiding(shown=THIN, hidden=POSIX) + _ELSEWHERE.format(lacking=LINUX)
"""The beginning of a program in an installation of the client alone, on any operating system."""
