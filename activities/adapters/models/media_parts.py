"""Convert images and files for a provider. If some providers don't accept a part's format, a text description replaces
the part.

Otherwise, a single unsupported part would cause the provider to reject the whole conversation, and every retry would
fail.
"""

import re
from base64 import b64decode
from binascii import Error
from typing import Final

from loom.domain.core.media import IMAGES, PDF
from loom.domain.core.messages import Part

_HEARS: Final = re.compile(r"audio|omni|realtime")
"""The names of OpenAI's models that take audio. Its other models reject a conversation with a recording."""


def accepted_by(prefix: str, model: str) -> frozenset[str]:
    """Return what a model takes besides text, as far as Loom knows. The option `accepts` overrides it."""
    pictures = frozenset({"image", "pdf"})
    return pictures if prefix != "openai" or not _HEARS.search(model) else pictures | {"audio"}


def is_image(part: Part) -> bool:
    """Whether this is an image that every provider accepts. Images at a URL aren't checked."""
    return part.type == "image" and (bool(part.url) or (bool(part.data) and part.media_type in IMAGES))


def is_document(part: Part) -> bool:
    """Whether this is a PDF that includes its data."""
    return part.type == "file" and part.media_type == PDF and bool(part.data)


def in_words(part: Part) -> str:
    """Return the part's text, the content of a text file, or a description of the part."""
    if part.type == "text":
        return part.text
    if part.type == "file" and part.media_type.startswith("text/") and part.data:
        return f"({part.name or 'a file'}:)\n{_decoded(part.data)}"
    facts = (part.media_type, part.name, part.url, f"{len(part.data) * 3 // 4} bytes" if part.data else "")
    return f"({part.type} that cannot be shown: {', '.join(fact for fact in facts if fact)})"


def _decoded(data: str) -> str:
    try:
        return b64decode(data).decode("utf-8", "replace")
    except Error:
        return "(not readable)"
