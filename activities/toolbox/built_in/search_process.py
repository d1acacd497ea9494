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

from loom.activities.toolbox.workspace import confined_open as beneath

_LINE = 300


def search(root: str, paths: Iterable[str], pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield `path:line:text` for every matching line. Binary and unreadable files are skipped."""
    for path in paths:
        try:
            opened = beneath.open_file(root, path.split("/"))
        except OSError:
            continue
        with os.fdopen(opened, "rb") as file:
            if b"\0" in file.read(8192):
                continue
            file.seek(0)
            for number, raw in enumerate(file, start=1):
                line = raw.decode("utf-8", "replace").rstrip("\r\n")
                if pattern.search(line):
                    yield f"{path}:{number}:{line if len(line) <= _LINE else line[:_LINE] + '…'}"


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
