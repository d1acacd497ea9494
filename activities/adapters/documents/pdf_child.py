"""Extract the text of one PDF: read the file from standard input and write the text to standard output.

`readers` runs this file as a separate program for each PDF. The program imports nothing from Loom. In the output, a
form feed separates the pages.
"""

import io
import logging
import resource
import sys
from contextlib import suppress
from typing import Final

MEMORY: Final = 1 << 30
PROCESSOR_SECONDS: Final = 50
OUTPUT_LIMIT: Final = 20_000_000
"""Maximum number of characters per document."""

ENCRYPTED: Final = 3
"""Exit code for an encrypted file."""


def main() -> int:
    """Read one document within the process limits. The system terminates the process if it exceeds a limit."""
    _limit(resource.RLIMIT_AS, MEMORY)
    _limit(resource.RLIMIT_CPU, PROCESSOR_SECONDS)
    _limit(resource.RLIMIT_CORE, 0)
    from pypdf import PasswordType, PdfReader  # noqa: PLC0415 - import only after the limits are set

    logging.disable()
    reader = PdfReader(io.BytesIO(sys.stdin.buffer.read()))
    if reader.is_encrypted and reader.decrypt("") == PasswordType.NOT_DECRYPTED:
        return ENCRYPTED
    left = OUTPUT_LIMIT
    for number, page in enumerate(reader.pages):
        text = page.extract_text().replace("\f", "\n")[:left]
        left -= len(text)
        sys.stdout.buffer.write((("\f" if number else "") + text).encode("utf-8", "replace"))
    return 0


def _limit(what: int, most: int) -> None:
    # Some systems don't support all of these limits. If a lower limit is already set, it is kept.
    with suppress(ValueError, OSError):
        resource.setrlimit(what, (most, most))


if __name__ == "__main__":
    sys.exit(main())
