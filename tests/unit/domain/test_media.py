"""What a content is, by its first bytes, and how many tokens it may cost."""

import struct
import zlib
from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.errors import BadRequest
from loom.domain.core.media import (
    IMAGE_BYTES,
    base64_content,
    image_size,
    kind_of,
    media_tokens,
    pages_of,
    picture_problem,
    recognized,
    sniffed,
)
from loom.domain.core.messages import Message, Part, message_digest, user, with_parts
from loom.domain.core.tokens import IMAGE


def png(width: int = 2, height: int = 3) -> bytes:
    """A whole PNG of one colour."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = (b"\0" + b"\xff" * 3 * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    packed = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + packed


def wav(seconds: float = 1.0, rate: int = 8000) -> bytes:
    """A recording of silence with one byte per sample."""
    data = b"\x80" * int(seconds * rate)
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16, 1, 1, rate, rate, 1, 8,
                       b"data", len(data))  # fmt: skip
    return head + data


JPEG = bytes.fromhex("ffd8ffe000104a46494600010100000100010000ffc0000b080010002001011100ffd9")
GIF = b"GIF89a" + struct.pack("<HH", 5, 7) + b"\0" * 10
WEBP = b"RIFF\0\0\0\0WEBPVP8X" + b"\0" * 8 + bytes([9, 0, 0, 4, 0, 0])
PDF = b"%PDF-1.4\n1 0 obj <</Type /Pages /Count 3>> endobj"


@pytest.mark.parametrize(
    ("data", "content"),
    [
        ("aGVsbG8=", b"hello"),
        ("aGVs\r\nbG8=\n", b"hello"),
        ("aGVsbG8", None),
        ("aGVsb", None),
        ("no base64!", None),
        ("é", None),
        (" \n", None),
        ("", None),
    ],
)
def test_only_base64_has_a_content_and_line_breaks_are_no_part_of_it(data: str, content: bytes | None) -> None:
    assert base64_content(data) == content


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (png(), "image/png"),
        (JPEG, "image/jpeg"),
        (GIF, "image/gif"),
        (WEBP, "image/webp"),
        (PDF, "application/pdf"),
        (wav(), "audio/wav"),
        (b"ID3\x03\0", "audio/mpeg"),
        (b"\xff\xfb\x90\0", "audio/mpeg"),
        (b"OggS\0", "audio/ogg"),
        (b"fLaC\0", "audio/flac"),
        (b"\0\0\0 ftypM4A ", "audio/mp4"),
        (b"ID3 is an algorithm", ""),
        (b"hello", ""),
        (b"", ""),
    ],
)
def test_a_content_is_recognized_by_its_first_bytes(data: bytes, media_type: str) -> None:
    assert sniffed(data) == media_type


@pytest.mark.parametrize(
    ("media_type", "data", "size"),
    [
        ("image/png", png(20, 30), (20, 30)),
        ("image/jpeg", JPEG, (32, 16)),
        ("image/gif", GIF, (5, 7)),
        ("image/webp", WEBP, (10, 5)),
        ("image/png", b"\x89PNG", None),
        ("image/jpeg", b"\xff\xd8\xff\xe0\0", None),
    ],
)
def test_the_size_of_an_image_is_in_its_header(media_type: str, data: bytes, size: tuple[int, int] | None) -> None:
    assert image_size(media_type, data) == size


def test_tokens_follow_pixels_pages_and_seconds() -> None:
    assert media_tokens("image/png", png(300, 1000)) == 400
    assert media_tokens("image/png", b"\x89PNG") == IMAGE
    assert media_tokens("application/pdf", PDF) == 7500
    assert pages_of(b"%PDF-1.7" + b"\0" * 120_000) == 2
    assert media_tokens("audio/wav", wav(12.0)) == 120
    assert media_tokens("text/plain", b"a" * 400) == 100


def test_the_content_decides_and_not_the_name() -> None:
    assert recognized(png(), "report.pdf").media_type == "image/png"
    assert (recognized(b"a,b", "n.csv").media_type, recognized("ä".encode()).media_type) == ("text/csv", "text/plain")
    assert [kind_of(name) for name in ("image/png", "image/svg+xml", "text/csv", "audio/x", "application/pdf")] == [
        "image",
        "other",
        "text",
        "audio",
        "pdf",
    ]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "a.x is empty"),
        (b"\0\1\2", "a.x has a format that no model can read: attach a PNG"),
        (b"\xff\xfe\x80", "a.x has a format that no model can read"),
        (png() + b"\0" * IMAGE_BYTES, "a.x has 3,750,0.. bytes, and the limit is 3,750,000: use a smaller version"),
        (png(9000, 1), "a.x is larger than 8,000 pixels"),
    ],
)
def test_what_no_model_takes_is_refused_with_a_way_out(data: bytes, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        recognized(data, "a.x")


WHOLE_GIF = b"GIF89a\1\0\1\0\x80\0\0\x80\x80\x80\0\0\0!\xf9\4\0\0\0\0\0,\0\0\0\0\1\0\1\0\0\2\2D\1\0;"
WHOLE_JPEG = bytes.fromhex(
    "ffd8ffe000104a46494600010100000100010000ffc0000b080010002001011100ffda0008010100003f00ff00d2cf20ffd9"
)
WHOLE_WEBP = b64decode("UklGRiIAAABXRUJQVlA4IBYAAAAwAQCdASoBAAEADsD+JaQAA3AAAAAA")
LOSSLESS_WEBP = b64decode("UklGRhoAAABXRUJQVlA4TA0AAAAvAAAAEAcQERGIiP4HAA==")
PICTURES = [png(), png(300, 200), WHOLE_GIF, WHOLE_JPEG, WHOLE_WEBP, LOSSLESS_WEBP]


@pytest.mark.parametrize("data", PICTURES, ids=[f"{sniffed(data)}-{len(data)}" for data in PICTURES])
def test_a_picture_that_is_cut_anywhere_has_a_problem_and_a_whole_one_has_none(data: bytes) -> None:
    kind = sniffed(data)
    assert picture_problem(kind, data) == ""
    assert picture_problem(kind, data + b"more") == ""
    assert recognized(data).media_type == kind
    for end in range(len(data)):
        assert picture_problem(kind, data[:end]) == "is damaged or cut off: use the whole file"
    with pytest.raises(BadRequest, match="a.x is damaged or cut off: use the whole file"):
        recognized(data[:-1], "a.x")


@pytest.mark.parametrize(
    ("media_type", "data", "why"),
    [
        ("image/png", png().replace(b"IDAT", b"IDAX"), "is damaged"),
        ("image/png", png()[:20] + b"\xff" + png()[21:], "is damaged"),
        ("image/png", png(2, 0), "has no width or no height"),
        ("image/png", png(9000, 1), "is larger than 8,000 pixels"),
        ("image/png", png() + b"\0" * IMAGE_BYTES, "the limit is 3,750,000"),
        ("image/gif", b"GIF89a\1\0\1\0\0\0\0;", "is damaged"),
        ("image/jpeg", b"\xff\xd8\xff\xd9", "is damaged"),
        ("image/webp", WEBP, "is damaged"),
        ("image/png", b"", "is damaged"),
        ("image/svg+xml", b"<svg", ""),
        ("audio/wav", b"RIFF", ""),
    ],
)
def test_what_providers_reject_in_a_picture_is_found(media_type: str, data: bytes, why: str) -> None:
    assert why in picture_problem(media_type, data)
    assert bool(why) == bool(picture_problem(media_type, data))


@given(st.sampled_from(["image/png", "image/jpeg", "image/gif", "image/webp"]), st.sampled_from(PICTURES), st.data())
def test_no_bytes_break_the_look_at_a_picture(media_type: str, data: bytes, drawn: st.DataObject) -> None:
    at = drawn.draw(st.integers(0, len(data)))
    picture_problem(media_type, data[:at] + drawn.draw(st.binary(max_size=30)) + data[at:])


def test_a_message_tells_its_parts_and_only_stored_ones_change_its_digest() -> None:
    plain = Part(type="image", media_type="image/png", data="iVBORw0KGgo=", name="a.png")
    stored = Part(type="file", media_type="application/pdf", digest="ab" * 32, size=12_345, counted=77, name="r.pdf")
    message = with_parts(user("look"), (plain, stored))
    assert message.text == "look"
    assert message.told == "look\n[image: a.png, image/png, 8 bytes]\n[file: r.pdf, application/pdf, 12,345 bytes]"
    assert (stored.tokens, stored.id) == (77, "ab" * 6)
    other = Message(role="user", content=(Part(type="file", media_type="application/pdf", digest="cd" * 32),))
    same = Message(role="user", content=(Part(type="file", media_type="application/pdf"),))
    assert message_digest(other) != message_digest(same)
    assert with_parts(user("look"), ()) == user("look")
