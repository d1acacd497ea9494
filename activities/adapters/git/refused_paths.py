"""The paths that Git refuses to check out. The process that reads archives imports this file, which therefore imports
only the standard library.
"""

import os
import re
from typing import Final

LONGEST_PATH: Final = 3_500
"""The size in bytes of the longest path in a clone. The system allows 4,096 with the clone's folder."""
LINK: Final = "120000"
"""The mode of a symbolic link in a Git tree."""
_IGNORED_BY_HFS: Final = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
_REFUSED_NAME: Final = re.compile(r"(\.git|git~\d+)[ .]*(:.*)?", re.IGNORECASE | re.DOTALL)
_REFUSED_LINK: Final = re.compile(
    r"(\.git|git~\d+|\.gitmodules|gitmod~\d|g?i?7?e?b?a?~\d+)[ .]*(:.*)?", re.IGNORECASE | re.DOTALL
)
"""The names of files, and of links, that Git doesn't check out, because some file systems take them for those of its
own files. A few more names match, too.
"""


def is_refused(path: bytes, mode: str) -> bool:
    """Whether Git refuses to check out this path, because it leads elsewhere on some systems, or is too long."""
    *folders, name = re.split(r"[/\\]", _IGNORED_BY_HFS.sub("", os.fsdecode(path)))
    shape = _REFUSED_LINK if mode == LINK else _REFUSED_NAME
    return (
        len(path) > LONGEST_PATH
        or any(part in ("", ".", "..") for part in os.fsdecode(path).split("/"))
        or any(_REFUSED_NAME.fullmatch(part) for part in folders)
        or shape.fullmatch(name) is not None
    )
