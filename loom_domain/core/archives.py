"""Archives whose files runs work on: recognize their formats by their first bytes, whatever their names are."""

from typing import Final, Literal, TypeAlias

from loom.domain.core.errors import BadRequest
from loom.domain.core.media import MOST_BYTES, base64_content

ArchiveFormat: TypeAlias = Literal["tar", "gz", "bz2", "xz", "zip"]

DATA: Final = "workspace.archive.data"
"""The field of a request that has an archive's content."""
_MAGIC: Final[tuple[tuple[int, bytes, ArchiveFormat], ...]] = (
    (0, b"\x1f\x8b", "gz"),
    (0, b"BZh", "bz2"),
    (0, b"\xfd7zXZ\0", "xz"),
    (0, b"PK\x03\x04", "zip"),
    (257, b"ustar", "tar"),
)
_HEADER: Final = 512
_CHECKSUM: Final = slice(148, 156)


def archive_content(data: str) -> bytes:
    """Return the content of an archive from base64. Raises BadRequest if there is none, or no archive."""
    content = base64_content(data)
    if content is None:
        raise BadRequest(f"{DATA}: not base64: encode the content of the archive", field=DATA)
    archive_format(content)
    return content


def archive_format(content: bytes) -> ArchiveFormat:
    """Return the format of an archive. Raises BadRequest if it is empty, too large, or has none that Loom unpacks."""
    if len(content) > MOST_BYTES:
        raise BadRequest(
            f"the archive has {len(content):,} bytes, and the limit is {MOST_BYTES:,}: leave files out, or put them in"
            " a Git repository",
            field=DATA,
        )
    for at, magic, name in _MAGIC:
        if content.startswith(magic, at):
            return name
    if _is_tar_header(content[:_HEADER]):
        return "tar"
    raise BadRequest(
        "the archive isn't one that Loom unpacks: send a .tar, .tar.gz, .tar.bz2, .tar.xz or .zip", field=DATA
    )


def _is_tar_header(header: bytes) -> bool:
    """Whether the checksum is right: the oldest format of tar has nothing else to recognize it by."""
    field = header[_CHECKSUM]
    said = field.strip(b" \0")
    if not said or said.strip(b"01234567"):
        return False
    return int(said, 8) == sum(header) - sum(field) + len(field) * ord(" ")
