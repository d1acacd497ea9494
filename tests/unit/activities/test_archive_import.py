"""What Git gets of an archive, and which archives are refused. Nothing here writes a file."""

import io
import posixpath
import stat
import tarfile
import zipfile
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.activities.adapters.git.archive_import import Limits, RefusedArchive, convert
from loom.domain.core.archives import archive_format
from loom.domain.core.errors import BadRequest
from loom.domain.core.media import MOST_BYTES
from tests.archives import TarMode, link, member, tar, tar_of, zip_member, zipped

LIMITS = Limits(entries=20, size=100_000, paths=10_000, seconds=10)


def imported(content: bytes, limits: Limits = LIMITS) -> dict[str, tuple[str, bytes]]:
    """Return the mode and the content of each file that Git gets."""
    out = io.BytesIO()
    convert(io.BytesIO(content), archive_format(content), limits, out)
    return _files(out.getvalue())


def _files(stream: bytes) -> dict[str, tuple[str, bytes]]:
    """Read a stream for `git fast-import`."""
    reader, blobs, files = io.BytesIO(stream), {}, {}
    while line := reader.readline():
        if line == b"blob\n":
            mark = reader.readline().split(b":")[1].strip()
            blobs[mark] = reader.read(int(reader.readline().split()[1]))
        elif line.startswith(b"M "):
            _, mode, mark, path = line.rstrip(b"\n").split(b" ", 3)
            files[path[1:-1].decode()] = (mode.decode(), blobs[mark[1:]])
    return files


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_tar_archive_has_its_files_whatever_packs_them(mode: TarMode) -> None:
    packed = tar(
        member("./top/", type=tarfile.DIRTYPE),
        member("./top/a.txt", b"one\n"),
        member("./top/run.sh", b"#!/bin/sh\n", mode=0o4755),
        link("./top/link", "a.txt"),
        link("./top/deep/up", "../a.txt"),
        link("./top/same", "./top/a.txt", tarfile.LNKTYPE),
        mode=mode,
    )

    assert imported(packed) == {
        "top/a.txt": ("100644", b"one\n"),
        "top/run.sh": ("100755", b"#!/bin/sh\n"),
        "top/link": ("120000", b"a.txt"),
        "top/deep/up": ("120000", b"../a.txt"),
        "top/same": ("100644", b"one\n"),
    }


def test_a_zip_archive_has_its_files_even_without_permissions() -> None:
    packed = zipped(
        ("top/", b""),
        (zip_member("top/a.txt", 0), b"one\n"),
        (zip_member("top/run.sh", stat.S_IFREG | 0o755), b"x"),
        (zip_member("top/link", stat.S_IFLNK | 0o777), b"a.txt"),
        (zip_member("top/ü.txt"), b""),
    )

    assert imported(packed) == {
        "top/a.txt": ("100644", b"one\n"),
        "top/run.sh": ("100755", b"x"),
        "top/link": ("120000", b"a.txt"),
        "top/ü.txt": ("100644", b""),
    }


def test_the_name_of_a_zip_s_member_is_utf_8_even_if_the_archive_does_not_say_so() -> None:
    name = "ü.txt"
    packed = zipped((zip_member("xx.txt"), b"one")).replace(b"xx.txt", name.encode())

    assert imported(packed) == {name: ("100644", b"one")}


def test_git_folders_are_left_out_with_all_that_is_in_them() -> None:
    packed = tar(
        member("a/.git/config", b"[core]\n\tfsmonitor = evil\n"),
        link("a/.git/hooks/x", "/usr/bin/evil"),
        member("a/.git/fsmonitor.ipc", type=tarfile.FIFOTYPE),
        member("a/sub/.git", b"gitdir: elsewhere\n"),
        member("a/x", b"x"),
    )
    out = io.BytesIO()

    assert convert(io.BytesIO(packed), "tar", LIMITS, out) == ["a/.git", "a/sub/.git"]
    assert _files(out.getvalue()) == {"a/x": ("100644", b"x")}


def test_the_first_git_folders_that_are_left_out_are_named_and_the_others_counted() -> None:
    long = "/".join(["d" * 100] * 3)
    packed = tar(member("x", b"x"), *(member(f"{number}/{long}/.git/x", b"x") for number in range(25)))

    told = convert(io.BytesIO(packed), "tar", LIMITS._replace(entries=30), io.BytesIO())

    assert (len(told), told[-1]) == (21, "and 5 more")
    assert told[0] == f"0/{long}"[:200] + "…"


def test_one_block_of_zeros_ends_a_tar_archive_and_zeros_may_follow() -> None:
    block = 512
    packed = tar(member("a", b"x" * block))[: 2 * block]

    assert imported(packed + bytes(block)) == imported(packed + bytes(99 * block)) == {"a": ("100644", b"x" * block)}


def test_a_tar_archive_without_a_magic_number_is_recognized_by_its_checksum() -> None:
    packed = bytearray(tar(member("a", b"x")))
    packed[257:265] = bytes(8)  # the format of Unix v7
    packed[148:156] = b"%06o\0 " % sum(packed[:148] + b" " * 8 + packed[156:512])

    assert imported(bytes(packed)) == {"a": ("100644", b"x")}


def test_a_folder_of_a_zip_archive_needs_no_slash() -> None:
    packed = zipped((zip_member("top", stat.S_IFDIR | 0o755), b""), (zip_member("top/a"), b"x"))

    assert imported(packed) == {"top/a": ("100644", b"x")}


HOSTILE: dict[str, tuple[bytes, str]] = {
    "absolute": (tar(member("/etc/passwd", b"x")), "'/etc/passwd' would be outside the folder"),
    "parent": (tar(member("a/../../x", b"x")), "'a/../../x' would be outside the folder"),
    "zip parent": (zipped(("../x", b"x")), "'../x' would be outside the folder"),
    "absolute link": (tar(link("a", "/etc/passwd")), "'a' is a link to '/etc/passwd', which may lead out"),
    "link out": (tar(link("a/b", "../../x")), "may lead out of the folder"),
    "link through a link": (tar(link("l", "."), link("m", "l/../x")), "'m' is a link to 'l/../x'"),
    "zip link out": (zipped((zip_member("a", stat.S_IFLNK), b"../x")), "may lead out of the folder"),
    "file below a link": (tar(link("a", "b"), member("a/x", b"x")), "'a' is both a file and a folder"),
    "file and folder": (tar(member("a/x", b"x"), member("a", b"x")), "'a' is both a file and a folder"),
    "hard link out": (tar(link("a", "/etc/passwd", tarfile.LNKTYPE)), "hard link to '/etc/passwd'"),
    "hard link to a link": (
        tar(link("a/b/up", "../../x"), link("up", "a/b/up", tarfile.LNKTYPE)),
        "'up' is a hard link to the link 'a/b/up': pack the files with `--hard-dereference`",
    ),
    "name of Git": (tar(member("a/.GIT/config", b"x")), "'a/.GIT/config' has a name that Git doesn't check out"),
    "name of Git on a Mac": (tar(member("a/.g\u200cit/config", b"x")), "has a name that Git doesn't check out"),
    "link of Git": (tar(link(".gitmodules", "x")), "'.gitmodules' has a name that Git doesn't check out"),
    "device": (tar(member("null", type=tarfile.CHRTYPE)), "'null' isn't a file, a folder or a link"),
    "fifo": (tar(member("pipe", type=tarfile.FIFOTYPE)), "'pipe' isn't a file, a folder or a link"),
    "zip device": (zipped((zip_member("null", stat.S_IFCHR), b"")), "'null' isn't a file, a folder or a link"),
    "sparse": (tar(member("hole", type=tarfile.GNUTYPE_SPARSE)), "'hole' is a sparse file"),
    "twice": (tar(member("a", b"1"), member("./a", b"2")), "'a' is in the archive twice"),
    "not utf-8": (tar(member("a\udcff", b"x")), "has a name that isn't UTF-8"),
    "zip not utf-8": (zipped(("xy.txt", b"x")).replace(b"xy.txt", b"\xff\xfe.txt"), "has a name that isn't UTF-8"),
    "backslash": (zipped(("a\\b.txt", b"x")), "has a backslash in its name"),
    "long name": (tar(member("a" * 256, b"x")), "has a name that is too long"),
    "long path": (tar(member("/".join(["a" * 200] * 20), b"x")), "a path has at most 3,500 bytes"),
    "long paths": (
        tar(*(member(f"{number}{'a' * 200}/{'/'.join(['b' * 200] * 3)}/c", b"") for number in range(5))),
        "the paths in the archive have more than 10,000 bytes together",
    ),
    "deep": (tar(member("a/" * 101 + "b", b"x")), "is in more than 100 folders"),
    "long header": (tar(member("a", b"x", pax_headers={"comment": "x" * 2**21})), "a header that is too large"),
    "empty": (tar(member("a/", type=tarfile.DIRTYPE)), "has no files"),
    "many": (tar(*(member(f"{number}", b"") for number in range(30))), "more than 20 files and folders"),
    "many folders": (tar(member("/".join("abcdefghijklmnopqrstuvw"), b"")), "more than 20 files and folders"),
    "bomb": (tar(member("zeros", bytes(200_000)), mode="w:xz"), "content has more than"),
    "zip bomb": (zipped(("zeros", bytes(200_000))), "content has more than"),
    "negative size": (
        tar(member("a", b"x", pax_headers={"size": "-10"})),
        "'a' has a negative size",
    ),
    "cut off between members": (tar(member("a", b"x" * 512), member("b", b"y" * 512))[:1024], "cut off"),
    "two archives": (tar_of({"a": "x"}, "w") + tar_of({"b": "y"}, "w"), "the archive has data after its end"),
    "no tar": (tar_of({"a": "x"}, "w")[:200] + bytes(57) + b"ustar" + b"\1" * 500, "is damaged"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_archive_that_is_not_what_it_seems_is_refused_by_the_name_of_the_member(name: str) -> None:
    content, said = HOSTILE[name]

    with pytest.raises(RefusedArchive) as refused:
        imported(content)

    assert said in str(refused.value)


def test_an_encrypted_zip_is_refused() -> None:
    packed = bytearray(zipped(("secret.txt", b"x")))
    packed[6] |= 1
    packed[packed.index(b"PK\1\2") + 8] |= 1

    with pytest.raises(RefusedArchive, match="'secret.txt' is encrypted: pack the files without a password"):
        imported(bytes(packed))


def test_a_file_has_the_bytes_that_are_there_and_not_those_that_its_header_promises() -> None:
    packed = bytearray(zipped((zip_member("a"), b"x" * 100)))
    directory = packed.index(b"PK\1\2")
    packed[directory + 24 : directory + 28] = (50_000).to_bytes(4, "little")

    with pytest.raises((RefusedArchive, zipfile.BadZipFile, EOFError)):
        imported(bytes(packed))


DAMAGED = [tar_of({"a": "one\n" * 300, "b/c": "two\n" * 300}, mode) for mode in ("w", "w:gz", "w:bz2", "w:xz")]


@given(number=st.integers(0, len(DAMAGED)), at=st.floats(0, 1), to=st.integers(0, 255))
def test_a_changed_byte_never_leads_out_of_the_folder_or_changes_what_is_counted(
    number: int, at: float, to: int
) -> None:
    content = bytearray([*DAMAGED, zipped(("a", b"one\n" * 300), ("b/c", b"two\n" * 300))][number])
    content[int(at * (len(content) - 1))] = to

    try:
        files = imported(bytes(content))
    except BadRequest:  # the format isn't recognized
        return
    except Exception:  # noqa: BLE001 - the process ends, whatever it is
        return

    assert sum(len(data) for _, data in files.values()) <= LIMITS.size
    assert not any(path.startswith("/") or ".." in path.split("/") for path in files)


@pytest.mark.parametrize("target", ["a", "b/c", "..", "../x", "../../x", "../../../x", "a/../../x", "/x"])
@pytest.mark.parametrize(("name", "same"), [*permutations(["a", "b/c", "d/e/f"], 2)])
def test_no_name_of_a_link_leads_out_of_the_folder(name: str, same: str, target: str) -> None:
    for packed in (tar(link(name, target)), tar(link(name, target), link(same, name, tarfile.LNKTYPE))):
        try:
            files = imported(packed)
        except RefusedArchive:
            continue
        for path, (_, to) in files.items():
            leads_to = posixpath.normpath(posixpath.join(posixpath.dirname(path), to.decode()))
            assert not leads_to.startswith(("/", "..")), f"{path} leads to {leads_to}"


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\5\6" + bytes(18), b"\x7fELF"])
def test_another_content_is_no_archive(content: bytes) -> None:
    with pytest.raises(BadRequest, match=r"send a \.tar, \.tar\.gz, \.tar\.bz2, \.tar\.xz or \.zip"):
        archive_format(content)


def test_an_archive_that_is_too_large_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadRequest, match="and the limit is 20,000,000"):
        archive_format(bytes(MOST_BYTES + 1))
