"""The files in a run's workspace, as a person reads and writes them: what `RunFiles` workflows are asked, and answer.

A worker does the work, because only workers have the files. A content travels by its digest if both sides reach the
database, and otherwise in the request and the answer.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from loom.domain.core.errors import BadRequest
from loom.domain.core.value_problems import DIGEST

RUN_FILES: Final = "RunFiles"
"""The name of the workflow."""
PREFIX: Final = "loom-files-"
"""The beginning of the ids of these workflows. The run's id follows."""
INLINE_LIMIT: Final = 1_000_000
"""The maximum size in bytes of a content that travels in the request or the answer."""
MAYBE_WRITTEN: Final = ". The file may have been written: look at it before you write it again"
"""The end of an error that doesn't say whether a write was carried out."""
LONGEST_PATH: Final = 4096
"""The maximum size in bytes of a path."""

_LONGEST_SHOWN: Final = 60
"""The maximum number of characters of a path in a summary or an error."""

FileOperation: TypeAlias = Literal["list", "read", "write"]
FileKind: TypeAlias = Literal["file", "folder", "link", "other"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CarriedContent:
    """The content of a file. Either field is set, or neither if the file is empty."""

    data: str = ""
    """The content in base64."""
    digest: str = ""
    """The SHA-256 of a stored content in hexadecimal digits. The workflow with the request owns it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallerLimits:
    """What a service lets one of its callers do. It signs the requests of all of them, so the signature says nothing
    about the caller. The worker's own limits apply, too.
    """

    roots: tuple[str, ...] | None = None
    """The folders in which the run's workspace may be, if Loom hasn't cloned it. None: any folder."""
    objection: str = ""
    """Why the caller may not do what the run's rules ask a person about. Empty if the caller may."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FilesRequest:
    """What somebody asks of a run's files. The worker takes everything else about the run from the run itself."""

    run_id: str
    operation: FileOperation
    path: str
    """Relative to the workspace. `.` is the workspace itself."""
    tenant: str = ""
    """The run's tenant, as the server knows it. The worker refuses another run."""
    content: CarriedContent | None = None
    """What to write."""
    by_reference: bool = False
    """Whether the caller can read stored contents."""
    limits: CallerLimits | None = None
    """Set if a service sends the request for one of its callers."""

    @property
    def summary(self) -> str:
        """What Temporal's Web UI shows."""
        return f"{self.operation} {self.short_path}"

    @property
    def short_path(self) -> str:
        """The path or, if it is long, its end."""
        return self.path if len(self.path) <= _LONGEST_SHOWN else f"…{self.path[-_LONGEST_SHOWN:]}"

    def refuse_unusable(self) -> None:
        """Raise BadRequest if no file can have this path, or no content this digest."""
        if (size := len(self.path.encode("utf-8", "surrogatepass"))) > LONGEST_PATH:
            raise BadRequest(f"path: has {size:,} bytes, but a path may have at most {LONGEST_PATH:,}", field="path")
        digest = self.content.digest if self.content else ""
        if digest and not re.fullmatch(DIGEST, digest):
            raise BadRequest("content.digest: must be a SHA-256 in 64 hexadecimal digits", field="content.digest")


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """An entry of a folder."""

    path: str
    r"""Relative to the workspace. Bytes that aren't UTF-8 are `\xNN`."""
    kind: FileKind
    bytes: int = 0
    """The size of a file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FilesAnswer:
    """What became of the request."""

    entries: tuple[FileEntry, ...] = ()
    """The entries of the folder, sorted by name."""
    left_out: int = 0
    """How many more entries there are. If a folder was read: how many files aren't in the archive, because they
    couldn't be read, or the run's rules deny them.
    """
    content: CarriedContent | None = None
    """What was read."""
    is_archive: bool = False
    """Whether `content` is a .tar.gz archive of a folder."""
    path: str = ""
    """Where the file was written: its real path, relative to the workspace."""
    is_new: bool = False
    """Whether the file that was written didn't exist before."""
    note: str = ""
    """What the caller has to know about the run's files. Empty if there is nothing."""
