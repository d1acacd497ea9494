"""Whether a picture is whole, by its structure alone. Providers reject a conversation with a picture that is cut off.

PNG: ISO/IEC 15948, GIF: the specification of version 89a, JPEG: ITU T.81, WebP: RFC 9649. The pixels aren't decoded.
"""

from collections.abc import Callable, Mapping
from typing import Final
from zlib import crc32

_CRITICAL: Final = (b"IHDR", b"PLTE", b"IDAT", b"IEND")
_STANDALONE: Final = frozenset({0x01, *range(0xD0, 0xD9)})
"""JPEG markers without a length."""
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SCAN: Final = 0xDA
_END: Final = 0xD9


def is_whole(media_type: str, data: bytes) -> bool:
    """Whether the picture has all of its parts. Other content counts as whole."""
    check = _CHECKS.get(media_type)
    return check is None or check(data)


def _png(data: bytes) -> bool:
    at, seen = 8, set[bytes]()
    while at + 12 <= len(data):
        size, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        end = at + 8 + size
        if end + 4 > len(data) or (not seen and (kind != b"IHDR" or size != 13)):
            return False
        if kind in _CRITICAL and crc32(memoryview(data)[at + 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
            return False
        if kind == b"IEND":
            return b"IDAT" in seen
        seen.add(kind)
        at = end + 4
    return False


def _jpeg(data: bytes) -> bool:
    """Look for a frame, a scan and the end. Some programs write more data after the end."""
    at, has_frame = 2, False
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF or marker in _STANDALONE:
            at += 1 if marker == 0xFF else 2
            continue
        if marker == _SCAN:
            return has_frame and data.find(bytes((0xFF, _END)), at) > 0
        has_frame = has_frame or marker in _FRAMES
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return False


def _gif(data: bytes) -> bool:
    if len(data) < 13:
        return False
    at, has_picture = 13 + _palette(data[10]), False
    while at < len(data):
        match data[at]:
            case 0x3B:
                return has_picture
            case 0x21:
                at = _after_blocks(data, at + 2)
            case 0x2C if at + 10 <= len(data):
                has_picture = True
                at = _after_blocks(data, at + 11 + _palette(data[at + 9]))
            case _:
                return False
    return False


def _palette(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _after_blocks(data: bytes, at: int) -> int:
    while at < len(data) and data[at]:
        at += 1 + data[at]
    return at + 1


def _webp(data: bytes) -> bool:
    if int.from_bytes(data[4:8], "little") + 8 > len(data):
        return False
    at, has_picture = 12, False
    while at + 8 <= len(data) and not has_picture:
        kind, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        has_picture = kind in (b"VP8 ", b"VP8L", b"ANMF") and size > 0 and at + 8 + size <= len(data)
        at += 8 + size + size % 2
    return has_picture


_CHECKS: Final[Mapping[str, Callable[[bytes], bool]]] = {
    "image/png": _png,
    "image/jpeg": _jpeg,
    "image/gif": _gif,
    "image/webp": _webp,
}
