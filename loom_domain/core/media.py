"""Images, audio and documents: recognize them by their first bytes, and estimate the tokens that providers count.

Names and declared media types aren't trusted, because a provider rejects a conversation whose content doesn't match its
declared type, and would reject it again in every later turn.
"""

import re
from base64 import b64decode
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from loom.domain.core.errors import BadRequest
from loom.domain.core.picture_structure import is_whole
from loom.domain.core.tokens import IMAGE, text_tokens

MediaKind: TypeAlias = Literal["image", "pdf", "audio", "text", "other"]
"""What a model must be able to take. Every model takes `text`, and none takes `other`."""

PDF: Final = "application/pdf"
UNKNOWN: Final = "application/octet-stream"
IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""The image formats that all providers accept."""

MOST_PARTS: Final = 20
"""Maximum number of parts in one message."""
MOST_BYTES: Final = 20_000_000
"""Maximum total size of the parts of one message, in bytes."""
IMAGE_BYTES: Final = 3_750_000
"""Maximum size of an image in bytes. As base64, it stays below the providers' limit of 5 MB."""
IMAGE_SIDE: Final = 8000
"""Maximum width and height of an image in pixels."""
PDF_PAGES: Final = 100
"""Maximum number of pages of a PDF that providers accept as a document. Of a longer one, models get the text."""

_PAGE: Final = 2500
"""Tokens per page of a PDF: its text and its picture."""
_BYTES_PER_PAGE: Final = 50_000
_PIXELS_PER_TOKEN: Final = 750
_TOKENS_PER_SECOND: Final = 10
_MP3_BYTES_PER_SECOND: Final = 8000

_MAGIC: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"%PDF-": PDF,
    b"ID3\x02": "audio/mpeg",
    b"ID3\x03": "audio/mpeg",
    b"ID3\x04": "audio/mpeg",
    b"OggS\0": "audio/ogg",
    b"fLaC\0": "audio/flac",
}
_RIFF: Final = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_TEXTS: Final = {".md": "text/markdown", ".csv": "text/csv", ".html": "text/html", ".json": "application/json"}
_LOOKED_AT: Final = 8192
_PAGES: Final = re.compile(rb"/Type\s*/Page(?![a-zA-Z])")
_COUNT: Final = re.compile(rb"/Count\s+(\d{1,5})\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recognized:
    """What a content is, according to the content itself."""

    media_type: str
    tokens: int
    """The estimated number of tokens."""

    @property
    def type(self) -> Literal["image", "audio", "file"]:
        """The type of a message's part with this content."""
        return part_type(self.media_type)


def part_type(media_type: str) -> Literal["image", "audio", "file"]:
    """Return the type of a message's part with this media type."""
    if media_type.startswith("image/"):
        return "image"
    return "audio" if media_type.startswith("audio/") else "file"


def kind_of(media_type: str) -> MediaKind:
    """Return what a model must be able to take, to take a content of this media type."""
    if media_type in IMAGES:
        return "image"
    if media_type == PDF:
        return "pdf"
    if media_type.startswith("audio/"):
        return "audio"
    return "text" if media_type.startswith("text/") or media_type == "application/json" else "other"


def base64_content(data: str) -> bytes | None:
    """Return the content that a part has in base64, or None if it has none. Line breaks and other whitespace, which
    many encoders add, don't count.
    """
    try:
        return b64decode("".join(data.split()), validate=True) or None
    except ValueError:
        return None


def sniffed(data: bytes) -> str:
    """Return the media type of an image, a PDF or an audio recording, or an empty string for any other content."""
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12], "")
    if data[4:8] == b"ftyp" and data[8:11] == b"M4A":
        return "audio/mp4"
    if len(data) > 1 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2:  # a frame of MPEG audio, layer III
        return "audio/mpeg"
    return next((media for magic, media in _MAGIC.items() if data.startswith(magic)), "")


def recognized(data: bytes, name: str = "") -> Recognized:
    """Return what an attached content is.

    Raises BadRequest if no model could take it: it is empty, too large, or of another format.
    """
    called = name or "the content"
    if not data:
        raise BadRequest(f"{called} is empty: attach a file with content")
    media_type = sniffed(data) or _text_type(data, name)
    if not media_type:
        raise BadRequest(
            f"{called} has a format that no model can read: attach a PNG, JPEG, GIF or WebP image, a PDF, an audio"
            " recording (WAV, MP3, Ogg, FLAC, M4A), or a text"
        )
    if len(data) > MOST_BYTES:
        raise BadRequest(f"{called} has {len(data):,} bytes, and the limit is {MOST_BYTES:,}: attach a smaller version")
    if why := picture_problem(media_type, data):
        raise BadRequest(f"{called} {why}")
    return Recognized(media_type=media_type, tokens=media_tokens(media_type, data))


def picture_problem(media_type: str, data: bytes) -> str:
    """Return why providers would reject this picture and what to do about it, or an empty string if they wouldn't. The
    media type must be that of the content. Content that isn't a picture has no problem.
    """
    if media_type not in IMAGES:
        return ""
    if len(data) > IMAGE_BYTES:
        return f"has {len(data):,} bytes, and the limit is {IMAGE_BYTES:,}: use a smaller version"
    if not is_whole(media_type, data):
        return "is damaged or cut off: use the whole file"
    size = image_size(media_type, data) or (1, 1)
    if max(size) > IMAGE_SIDE:
        return f"is larger than {IMAGE_SIDE:,} pixels on one side: use a smaller version"
    return "" if all(size) else "has no width or no height: use another picture"


def _text_type(data: bytes, name: str) -> str:
    start = data[:_LOOKED_AT]
    if b"\0" in start:
        return ""
    try:
        start.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(start) - 3 or len(data) <= _LOOKED_AT:  # a character may be cut at the end
            return ""
    return next((media for suffix, media in _TEXTS.items() if name.lower().endswith(suffix)), "text/plain")


def media_tokens(media_type: str, data: bytes) -> int:
    """Estimate the number of tokens that a provider counts for this content."""
    match kind_of(media_type):
        case "image":
            width, height = image_size(media_type, data) or (0, 0)
            return min(IMAGE, max(85, width * height // _PIXELS_PER_TOKEN)) if width and height else IMAGE
        case "pdf":
            return _PAGE * pages_of(data)
        case "audio":
            return max(1, round(_seconds(media_type, data) * _TOKENS_PER_SECOND))
        case "text":
            return text_tokens(data.decode("utf-8", "replace"))
        case _:
            return 50  # it is described in one line


def pages_of(data: bytes) -> int:
    """Estimate the number of pages of a PDF. In a compressed PDF, they can't be counted without decompressing it."""
    counted = max((int(count) for count in _COUNT.findall(data)), default=0)
    return max(counted, len(_PAGES.findall(data))) or max(1, len(data) // _BYTES_PER_PAGE)


def too_many_pages(tokens: int) -> bool:
    """Whether a PDF with this estimate has more pages than providers accept as a document."""
    return tokens > _PAGE * PDF_PAGES


def _seconds(media_type: str, data: bytes) -> float:
    rate = int.from_bytes(data[28:32], "little") if media_type == "audio/wav" and len(data) >= 44 else 0
    return len(data) / (rate or _MP3_BYTES_PER_SECOND)


def image_size(media_type: str, data: bytes) -> tuple[int, int] | None:
    """Return the width and height of an image in pixels, or None if they can't be found."""
    match media_type:
        case "image/png" if len(data) >= 24:
            return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
        case "image/gif" if len(data) >= 10:
            return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
        case "image/webp" if len(data) >= 30:
            return _webp_size(data)
        case "image/jpeg":
            return _jpeg_size(data)
        case _:
            return None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    match data[12:16]:
        case b"VP8X":
            return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
        case b"VP8L":
            bits = int.from_bytes(data[21:25], "little")
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case b"VP8 ":
            return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
        case _:
            return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Return the size in the first frame header (ITU T.81, B.2.2)."""
    at = 2
    while at + 9 < len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(data[at + 7 : at + 9], "big"), int.from_bytes(data[at + 5 : at + 7], "big")
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None
