"""The program that `html_reader` starts for each page: JSON from standard input, JSON to standard output.

It is run by its path and imports nothing of Loom's, so that it starts in less than a tenth of a second.
"""

import json
import re
import resource
import sys
from contextlib import suppress
from html import unescape
from typing import Final

MEMORY: Final = 1 << 30
PROCESSOR_SECONDS: Final = 10
OUTPUT_LIMIT: Final = 5_000_000
"""Characters of Markdown; a table can ask for a hundred times what it was written in."""

_TITLE: Final = re.compile(r"<title[^>]{0,200}>([^<]{0,1000})", re.IGNORECASE)
_TITLE_LIMIT: Final = 300


def main() -> None:
    """Convert one page within these limits; exceeding them ends the process."""
    _limit(resource.RLIMIT_AS, MEMORY)
    _limit(resource.RLIMIT_CPU, PROCESSOR_SECONDS)
    _limit(resource.RLIMIT_CORE, 0)
    request = json.load(sys.stdin.buffer)
    json.dump({"title": title_of(request["html"]), "markdown": markdown_of(**request)}, sys.stdout)


def markdown_of(html: str, base: str) -> str:
    """The page's text; relative links become whole ones, inline pictures their descriptions."""
    from html_to_markdown import ConversionOptions, PreprocessingOptions, convert  # noqa: PLC0415 - under the limits

    options = ConversionOptions(
        preprocessing=PreprocessingOptions(remove_navigation=True, remove_forms=False),
        inline_data_media="alt_text_only",
        compact_tables=True,
        extract_metadata=False,
        base_url=base,
    )
    return (convert(html, options).content or "")[:OUTPUT_LIMIT]


def title_of(html: str) -> str:
    """What the page is called, on one line."""
    found = _TITLE.search(html)
    return " ".join(unescape(found[1]).split())[:_TITLE_LIMIT] if found else ""


def _limit(what: int, most: int) -> None:
    # Not every system has every limit, and a lower one that is already there stays.
    with suppress(ValueError, OSError):
        resource.setrlimit(what, (most, most))


if __name__ == "__main__":
    main()
