"""Convert one page. Read JSON from standard input, and write JSON to standard output.

`html_reader` runs this file as a separate program for each page. The program imports nothing from Loom, so it starts in
less than a tenth of a second.
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
"""Maximum number of characters of Markdown. A table can expand to a hundred times its size."""

_TITLE: Final = re.compile(r"<title[^>]{0,200}>([^<]{0,1000})", re.IGNORECASE)
_TITLE_LIMIT: Final = 300


def main() -> None:
    """Convert one page within the process limits. The system terminates the process if it exceeds a limit."""
    _limit(resource.RLIMIT_AS, MEMORY)
    _limit(resource.RLIMIT_CPU, PROCESSOR_SECONDS)
    _limit(resource.RLIMIT_CORE, 0)
    request = json.load(sys.stdin.buffer)
    json.dump({"title": title_of(request["html"]), "markdown": markdown_of(**request)}, sys.stdout)


def markdown_of(html: str, base: str) -> str:
    """Return the page's text. Relative links become absolute, and inline images are replaced with their
    descriptions.
    """
    from html_to_markdown import ConversionOptions, PreprocessingOptions, convert  # noqa: PLC0415 - import only after the limits are set

    options = ConversionOptions(
        preprocessing=PreprocessingOptions(remove_navigation=True, remove_forms=False),
        inline_data_media="alt_text_only",
        compact_tables=True,
        extract_metadata=False,
        base_url=base,
    )
    return (convert(html, options).content or "")[:OUTPUT_LIMIT]


def title_of(html: str) -> str:
    """Return the page's title on one line."""
    found = _TITLE.search(html)
    return " ".join(unescape(found[1]).split())[:_TITLE_LIMIT] if found else ""


def _limit(what: int, most: int) -> None:
    # Some systems don't support all of these limits. If a lower limit is already set, it is kept.
    with suppress(ValueError, OSError):
        resource.setrlimit(what, (most, most))


if __name__ == "__main__":
    main()
