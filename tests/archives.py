"""Archives that tests pack, with members of every kind that the formats have."""

import io
import stat
import tarfile
import zipfile
from collections.abc import Mapping
from typing import Literal

TarMode = Literal["w", "w:gz", "w:bz2", "w:xz"]


def member(name: str, content: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    """Return a member of a tar archive: a file, unless `type` says otherwise."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    """Return a link: a symbolic one, or a hard one (LNKTYPE)."""
    return member(name, type=kind, linkname=target)


def tar(*members: tuple[tarfile.TarInfo, bytes], mode: TarMode = "w") -> bytes:
    """Pack a tar archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode, errors="surrogateescape") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def tar_of(files: Mapping[str, str], mode: TarMode = "w:gz") -> bytes:
    """Pack these files."""
    return tar(*(member(name, content.encode()) for name, content in files.items()), mode=mode)


def zipped(*members: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    """Pack a zip archive."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return packed.getvalue()


def zip_member(name: str, mode: int = stat.S_IFREG | 0o644, *, flags: int = 0) -> zipfile.ZipInfo:
    """Return a member of a zip archive with these permissions and of this type."""
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    info.flag_bits = flags
    return info
