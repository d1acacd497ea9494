"""How `passages.jsonl` was made: `python -m tests.corpora.retrieval.collect FOLDER`, wheels of Huawei unpacked in it.

A label is what an author wrote above a text: the summary line of a docstring, the heading of a section. Left out are
texts that repeat their heading word for word, headings that occur twice, and texts too short to say anything.
"""

import ast
import hashlib
import inspect
import json
import platform
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from html import unescape
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal

from tests.corpora.retrieval import FILE, Passage

ROOT: Final = Path(__file__).parents[3]
STANDARD: Final = (
    "argparse array ast asyncio bisect bz2 calendar cmd codecs collections concurrent.futures configparser"
    " contextlib copy csv ctypes datetime decimal difflib dis email.message enum fileinput fnmatch fractions"
    " ftplib functools gettext glob graphlib gzip hashlib heapq hmac html http.client http.cookies http.server"
    " imaplib importlib.util inspect io ipaddress itertools json locale logging lzma mailbox math mimetypes"
    " multiprocessing.pool operator os pathlib pickle pkgutil platform plistlib poplib pprint queue random re"
    " sched secrets selectors shelve shlex shutil signal smtplib socket socketserver sqlite3 ssl stat statistics"
    " string struct subprocess sysconfig tarfile tempfile textwrap threading timeit token tokenize trace traceback"
    " types typing unicodedata unittest.case unittest.mock urllib.parse urllib.request uuid warnings wave weakref"
    " webbrowser wsgiref.util xml.dom.minidom xml.etree.ElementTree xmlrpc.client zipfile zlib"
)
NUMERIC: Final = "numpy numpy.linalg numpy.fft numpy.random numpy.ma numpy.polynomial.polynomial numpy.testing"
MOST: Final = {"en": 520, "zh": 230}
LEAST: Final = {"en": 160, "zh": 50}
"""Characters of a body."""
SHARES: Final = {"python": 130, "numpy": 100, "loom-agents": 80, "huaweicloudsdk": 40}
"""Most passages of one package."""

_SECTION: Final = re.compile(r"^(#{2,4}) +(.+?) *#*$", re.MULTILINE)
_UNDERLINED: Final = re.compile(r"\n[ \w]+\n-{3,}\n")
_WORD: Final = re.compile(r"\w+")


def main(folder: Path) -> None:
    """Collect, and replace the file."""
    found = [*_docstrings(STANDARD.split(), f"python {platform.python_version()}")]
    found += _docstrings(NUMERIC.split(), f"numpy {version('numpy')}")
    found += _own_docs()
    found += _huawei(folder)
    kept = _shared(_distinct(found))
    FILE.write_text("".join(json.dumps(asdict(p), ensure_ascii=False) + "\n" for p in kept), encoding="utf-8")


def _docstrings(modules: Iterable[str], package: str) -> Iterator[Passage]:
    for name in modules:
        module = import_module(name)
        for place, value in sorted(_documented(module, name)):
            yield from _passage("en", f"{package}, {place}", *_split(value))


def _documented(module: object, name: str) -> Iterator[tuple[str, str]]:
    for attribute, value in vars(module).items():
        if attribute.startswith("_") or not (callable(value) or inspect.isclass(value)):
            continue
        yield f"{name}.{attribute}", inspect.getdoc(value) or ""
        if inspect.isclass(value):
            inside = ((n, v) for n, v in vars(value).items() if not n.startswith("_") and callable(v))
            yield from ((f"{name}.{attribute}.{n}", inspect.getdoc(v) or "") for n, v in inside)


def _split(text: str) -> tuple[str, str]:
    """The summary, and the prose below it."""
    text = _UNDERLINED.split(text)[0]
    summary, _, rest = text.partition("\n\n")
    prose = [part for part in rest.split("\n\n") if ">>>" not in part and not part.lstrip().startswith((".. ", "::"))]
    return " ".join(summary.split()).rstrip("."), "\n\n".join(prose)


def _own_docs() -> Iterator[Passage]:
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        parts = _SECTION.split(path.read_text(encoding="utf-8"))
        for heading, body in zip(parts[2::3], parts[3::3], strict=True):
            yield from _passage("en", f"loom-agents, {path.relative_to(ROOT)}", heading, body)


def _huawei(folder: Path) -> Iterator[Passage]:
    for path in sorted(folder.glob("huaweicloudsdk*/v*/*_client.py")):
        package = path.parts[-3]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef):
                continue
            text = ast.get_docstring(node) or ""
            if "Please refer to HUAWEI cloud" in text:
                title, _, body = text.split("Please refer to HUAWEI cloud")[0].partition("\n\n")
                yield from _passage("zh", f"{package} 3.1.219, {node.name}", title.strip(), body)


def _passage(language: Literal["en", "zh"], source: str, heading: str, body: str) -> Iterator[Passage]:
    text = textwrap.dedent(unescape(body)).strip()[: MOST[language]].strip()
    asked = len(_WORD.findall(heading)) if language == "en" else len(heading)
    long_enough = len(text) >= LEAST[language] and 3 <= asked <= 30
    if long_enough and "(" not in heading and heading.casefold() not in text.casefold():
        yield Passage(language=language, source=source, heading=heading, body=text)


def _distinct(found: Iterable[Passage]) -> list[Passage]:
    """One of each heading and of each beginning of a body."""
    seen: set[str] = set()
    kept = []
    for passage in found:
        marks = {passage.heading.casefold(), " ".join(passage.body.split())[:80].casefold()}
        if not marks & seen:
            kept.append(passage)
        seen |= marks
    return kept


def _shared(found: list[Passage]) -> Iterator[Passage]:
    """Of each package as many as it may have, by a digest: as good as by lot, and the same every time."""
    for package in dict.fromkeys(_package(p) for p in found):
        most = next(share for name, share in SHARES.items() if package.startswith(name))
        inside = [p for p in found if _package(p) == package]
        yield from sorted(inside, key=lambda p: hashlib.sha256(p.heading.encode()).digest())[:most]


def _package(passage: Passage) -> str:
    return re.split(r"[ ,]", passage.source)[0]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
