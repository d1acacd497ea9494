"""Find the documents in a folder, and read their content as text.

Skip hidden files, files that Git ignores, links, binary files, files that are too large, and files of unknown types.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loom.activities.knowledge.ports import UnreadableNow
from loom.activities.toolbox.workspace import paths as workspace
from loom.activities.toolbox.workspace.file_walk import walk
from loom.domain.core.errors import BadRequest, LoomError, ToolValidationError
from loom.domain.memory.chunks import Kind

LARGEST: Final = 2_000_000
"""Maximum size of a text file, an HTML page or a source file, in bytes."""
LARGEST_PDF: Final = 50_000_000
MOST_FILES: Final = 20_000
CUT: Final = "1"
"""Version of the splitting algorithm. If it changes, all documents are read again."""

_SUFFIXES: Final = {
    "markdown": "md markdown mdx mdown qmd rst adoc",
    "html": "html htm xhtml",
    "text": "txt text asciidoc org tex log toml yaml yml ini cfg",
    "code": "py pyi js mjs cjs ts tsx jsx go rs java kt kts scala c h cc cpp cxx hpp cs swift rb php lua r jl dart ex"
    " exs erl hs ml clj sh bash zsh sql proto graphql vue svelte zig nim pl pm m mm gradle tf",
    "pdf": "pdf",
}
_FAMILY: Final = {suffix: family for family, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}
_NAMES: Final = (
    "readme license licence changelog notice authors contributing copying makefile dockerfile"  # names without a suffix
)
_PAIR: Final = re.compile(rb"[\xa1-\xf7][\xa1-\xfe]")
_HIGH: Final = bytes(range(0x80, 0x100))
_KINDS: Final = {"pdf": Kind.PAGES, "markdown": Kind.MARKDOWN, "html": Kind.MARKDOWN, "code": Kind.CODE}


class LeftOut(Exception):
    """Raised if a file isn't a document. The message explains the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileOnDisk:
    """A file that may be a document."""

    path: str
    """Path relative to the folder."""
    suffix: str
    data: bytes

    @property
    def digest(self) -> str:
        """A digest of the file's content and the splitting algorithm."""
        return f"{CUT}-{hashlib.sha256(self.data).hexdigest()}"


def document_paths(folder: Path) -> tuple[str, ...]:
    """Return the documents' paths relative to the folder, in sorted order. File names determine which files are
    documents. Raises BadRequest if there are too many.
    """
    found = [path for path in walk(folder, folder, lambda: False) if not _is_hidden(path) and suffix_of(path)]
    if len(found) > MOST_FILES:
        raise BadRequest(
            f"{folder} has {len(found)} documents, but at most {MOST_FILES} are allowed: add its folders", field="dir"
        )
    return tuple(found)


def suffix_of(path: str) -> str:
    """Return the suffix that determines how to read the file. For names such as README, this is `txt`. Return an empty
    string for an unsupported file.
    """
    name = path.rpartition("/")[2].casefold()
    stem, dot, suffix = name.rpartition(".")
    if dot and suffix in _FAMILY:
        return suffix
    return "txt" if (stem or name) in _NAMES.split() else ""


def kind_of(suffix: str) -> Kind:
    """Return the text format of files with this suffix."""
    return _KINDS.get(_FAMILY[suffix], Kind.TEXT)


def is_html(suffix: str) -> bool:
    """Whether the file must be converted to Markdown."""
    return _FAMILY[suffix] == "html"


def read_file(folder: Path, path: str) -> FileOnDisk:
    """Read the whole file. Raises LeftOut if the file is too large or isn't a regular file in the folder, and
    UnreadableNow if it currently can't be read.
    """
    suffix = suffix_of(path)
    limit = LARGEST_PDF if suffix == "pdf" else LARGEST
    try:
        with workspace.open_file(folder, folder / path) as file:
            data = file.read(limit + 1)
    except ToolValidationError as error:
        raise LeftOut(f"cannot be read: {error}") from None
    except (LoomError, OSError) as error:
        raise UnreadableNow(f"cannot be read: {error}") from None
    if len(data) > limit:
        raise LeftOut(f"larger than {limit // 1_000_000} MB")
    return FileOnDisk(path=path, suffix=suffix, data=data)


def text_of(data: bytes) -> str:
    """Decode a text file. Raises LeftOut if the content isn't text.

    The byte order mark determines the encoding. Without one, the encoding is UTF-8 if the content is valid UTF-8.
    Otherwise, it is GB 18030 if the content looks like Chinese text, or else Windows-1252.
    """
    for mark, name in ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if data.startswith(mark):
            return data.decode(name, "replace")
    if b"\0" in data[:8192]:
        raise LeftOut("binary")
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _old(data)


def _old(data: bytes) -> str:
    """Decode the bytes as Chinese text if most high bytes occur in pairs. In Western text, most high bytes are followed
    by a letter.
    """
    pairs = len(_PAIR.findall(data))
    high = len(data) - len(data.translate(None, _HIGH))
    return data.decode("gb18030" if 2 * pairs >= 0.9 * high else "cp1252", "replace")


def _is_hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))
