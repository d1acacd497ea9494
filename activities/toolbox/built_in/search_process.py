"""Search files for a regular expression in a separate process: `python -c … ROOT SECONDS < request`.

Matching a regular expression against a single line can take unlimited time. Because the match holds the interpreter's
lock, only ending the process stops it. The process imports only the standard library and `beneath`, so it starts within
a few milliseconds.
"""

import json
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from loom.activities.toolbox.workspace import confined_open as beneath
from loom.activities.toolbox.workspace import text_bytes

_LINE = 300
_READ = 10 * 1024 * 1024


def search(root: str, paths: Iterable[str], pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield `path:line:text` for every matching line. Binary and unreadable files are skipped."""
    for path in paths:
        try:
            opened = beneath.open_file(root, path.split("/"))
        except OSError:
            continue
        with os.fdopen(opened, "rb") as file:
            start = file.read(8192)
            if text_bytes.is_binary(start):
                continue
            for number, found in enumerate(_lines(file, text_bytes.form_of(start)), start=1):
                line = found.rstrip("\r\n")
                if pattern.search(line):
                    shown = line if len(line) <= _LINE else line[:_LINE] + "…"
                    yield text_bytes.readable(f"{path}:{number}:{shown}")


def _lines(file: BinaryIO, form: text_bytes.Form) -> Iterator[str]:
    """Yield the lines of a text. One that isn't UTF-8 is read as a whole, up to a limit."""
    file.seek(len(form.mark))
    if form.encoding == "utf-8":
        return (raw.decode("utf-8", form.errors) for raw in file)
    return iter(file.read(_READ).decode(form.encoding, "replace").split("\n"))


def main() -> None:
    """Read the request and write matches as they are found. On timeout, an alarm ends the process."""
    root, seconds = sys.argv[-2], float(sys.argv[-1])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    request = json.load(sys.stdin)
    pattern = re.compile(request["pattern"], re.IGNORECASE if request["ignore_case"] else 0)
    for count, line in enumerate(search(root, request["paths"], pattern), start=1):
        data = line.encode("utf-8", "replace") + b"\n"
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        if count >= request["limit"]:
            return
