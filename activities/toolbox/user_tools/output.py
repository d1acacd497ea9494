"""Convert the return value of a user's function to text, JSON, images and files that a model can read.

A return value is never treated as an error. The function has already done its work, and if a failure were reported, the
model would repeat the call.
"""

import mimetypes
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final

from loom.activities.ports import ToolOutput
from loom.activities.toolbox.user_tools.json_results import as_json
from loom.activities.toolbox.workspace.text_bytes import readable
from loom.domain.core.media import IMAGES, PDF, UNKNOWN, part_type, sniffed
from loom.domain.core.messages import Part

PARTS_LIMIT: Final = 3_500_000
"""Maximum total size in bytes of the images and files in one result. Encoded as base64, they stay below the
providers' limit for a single image.
"""

_NOT_JSON: Final = (Part, ToolOutput, bytes, Path)


def to_output(value: object) -> str | ToolOutput:
    """Return the value as a tool's output. The files that `Path` values refer to may be read."""
    if isinstance(value, str):
        return readable(value)
    if isinstance(value, ToolOutput):
        return _within_limit(value)
    pieces = list(_pieces(value))
    text = "\n".join(piece for piece in pieces if isinstance(piece, str))
    parts = tuple(piece for piece in pieces if isinstance(piece, Part))
    return _within_limit(ToolOutput(text=text, parts=parts)) if parts else text


def part_of(data: bytes, *, name: str = "", media_type: str = "") -> Part:
    """Convert bytes to an image, audio or a file. By default, the media type is derived from the name or content."""
    media = media_type or mimetypes.guess_type(name)[0] or _sniffed(data)
    return Part(type=part_type(media), media_type=media, data=b64encode(data).decode(), name=name)


def _pieces(value: object) -> Iterator[str | Part]:
    """Yield text and parts, in order."""
    match value:
        case None:
            return
        case ToolOutput(text=text, parts=parts):
            yield text
            yield from parts
        case Part(type=kind):
            yield value.text if kind == "text" else value
        case bytes() | bytearray() | memoryview():
            yield part_of(bytes(value))
        case Path():
            yield _file(value)
        case list() | tuple() if any(isinstance(item, _NOT_JSON) for item in value):
            yield from chain.from_iterable(map(_pieces, value))
        case _:
            yield readable(value) if isinstance(value, str) else as_json(value)


def _file(path: Path) -> str | Part:
    try:
        if (size := path.stat().st_size) > PARTS_LIMIT:
            return _left_out(path.name, size)
        data = path.read_bytes()
    except OSError as error:
        return f"({path}: {error.strerror or error})"
    media = mimetypes.guess_type(path.name)[0] or _sniffed(data)
    if media.startswith("text/") or media in ("application/json", "application/xml"):
        return data.decode("utf-8", "replace")
    return part_of(data, name=path.name, media_type=media)


def _within_limit(output: ToolOutput) -> ToolOutput:
    """Return the output without the parts that exceed the limit. With these parts, a provider would reject the whole
    conversation.
    """
    kept: list[Part] = []
    notes: list[str] = []
    room = PARTS_LIMIT
    for given in output.parts:
        part, size = _checked(given)
        if size <= room:
            kept.append(part)
            room -= size
        else:
            notes.append(_left_out(part.name or part.media_type, size))
    text = "\n".join(filter(None, (output.text, *notes)))
    return ToolOutput(text=text, parts=tuple(kept), is_warning=output.is_warning or bool(notes))


def _checked(part: Part) -> tuple[Part, int]:
    """Return the part with the media type detected from its first bytes, and its size. An invalid image
    becomes a file.
    """
    if not part.data:
        return part, 0
    data = "".join(part.data.split())  # many encoders add line breaks
    try:
        head = b64decode(data[:32])
    except ValueError:
        part = replace(part, type="file", data=b64encode(part.data.encode()).decode())
        head = b""
    else:
        part = replace(part, data=data)
    size = len(part.data) * 3 // 4 - part.data[-2:].count("=")
    shown = _sniffed(head)
    if part.type == "image" or part.media_type in (PDF, *IMAGES):
        media = shown if shown != UNKNOWN or part.media_type in (PDF, *IMAGES) else part.media_type
        return replace(part, type=part_type(media), media_type=media), size
    return part, size


def _left_out(name: str, size: int) -> str:
    return f"({name} was left out: {size} bytes; a result may carry {PARTS_LIMIT} bytes of images and files)"


def _sniffed(data: bytes) -> str:
    return sniffed(data) or UNKNOWN
