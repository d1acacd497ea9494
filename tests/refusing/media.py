"""Whether a picture or a document is whole, as far as its structure says."""

import re
import struct
import zlib
from typing import Final

from loom.domain.core.media import image_size, sniffed

_PAGE: Final = re.compile(rb"/Type\s*/Page(?![a-zA-Z])")


def is_whole(media_type: str, data: bytes) -> bool:
    """Whether a picture of this type can be decoded. Other types aren't looked into."""
    match media_type:
        case "image/png":
            return _is_whole_png(data)
        case "image/jpeg":
            return data.startswith(b"\xff\xd8\xff") and data.rstrip(b"\0").endswith(b"\xff\xd9")
        case "image/gif":
            return data.startswith(b"GIF8") and data.endswith(b";")
        case _:
            return True


def _is_whole_png(data: bytes) -> bool:
    at, pixels, is_over = 8, b"", False
    while not is_over:
        if at + 12 > len(data):
            return False
        (length,) = struct.unpack_from(">I", data, at)
        name, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        checksum = data[at + 8 + length : at + 12 + length]
        if checksum != struct.pack(">I", zlib.crc32(name + content)):
            return False
        pixels += content if name == b"IDAT" else b""
        at, is_over = at + 12 + length, name == b"IEND"
    try:
        return bool(zlib.decompress(pixels))
    except zlib.error:
        return False


def matches(media_type: str, data: bytes) -> bool:
    """Whether the content is of the type that was declared for it."""
    return sniffed(data) == media_type


def longest_side(media_type: str, data: bytes) -> int:
    """The larger of a picture's width and height in pixels, or 0 if the picture doesn't say."""
    return max(image_size(media_type, data) or (0, 0))


def is_whole_pdf(data: bytes) -> bool:
    """Whether a PDF has a beginning and an end."""
    return data.startswith(b"%PDF-") and b"%%EOF" in data[-1024:]


def pages(data: bytes) -> int:
    """The number of a PDF's pages."""
    return len(_PAGE.findall(data))
