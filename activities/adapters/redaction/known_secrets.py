"""Find the secrets of this process as they are spelled in text, URLs, JSON, shells, Python and HTML."""

import html
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import quote, quote_plus, unquote, urlsplit

from loom.activities.adapters.redaction.patterns import MASK
from loom.activities.adapters.redaction.values import is_path

SHORTEST: Final = 8
"""Minimum length of a value that is redacted everywhere. Shorter values also occur in ordinary words."""

_SECRET_NAME: Final = re.compile(r"KEY|TOKEN|SECRET|PASSW|PWD|PASSPHRASE|CREDENTIAL|AUTH(?!OR)", re.IGNORECASE)
_NO_SECRET_NAME: Final = re.compile(
    r"(?:^|_)(?:PWD|OLDPWD|SOCK|PATH|FILE|DIR|AGENT_INFO|KEYBOARD\w*|KEYMAP)$", re.IGNORECASE
)
_WORDS: Final = re.compile(r"(?=.{1,24}\Z)(?:[A-Z]?[a-z]+|[A-Z]+)(?:[-_. /:]+(?:[A-Z]?[a-z]+|[A-Z]+))*")
_NUMBER: Final = re.compile(r"[\d.,:+-]{1,16}")
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def secrets_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of all variables whose names indicate a secret, and the passwords of all URLs in variables."""
    found = dict.fromkeys(secret for name, value in environ.items() for secret in _secrets_in(name, value))
    return tuple(found)


def _secrets_in(name: str, value: str) -> Iterator[str]:
    if _ADDRESS.match(value):
        yield from passwords_in(value)
    elif _SECRET_NAME.search(name) and not _NO_SECRET_NAME.search(name):
        yield value


def passwords_in(address: str) -> Iterator[str]:
    """Yield the password in a URL, both as written and decoded."""
    try:
        password = urlsplit(address).password
    except ValueError:  # the text isn't a valid URL
        return
    if password:
        yield from dict.fromkeys((password, unquote(password)))


def can_be_hidden(value: str) -> bool:
    """Whether the value can be redacted everywhere without affecting ordinary words, numbers and paths. Only long,
    unusual values can be redacted in this way.
    """
    plain = _WORDS.fullmatch(value) or _NUMBER.fullmatch(value) or is_path(value)
    return len(value) >= SHORTEST and not plain


def spellings(values: Iterable[str]) -> tuple[str, ...]:
    """Return every spelling of the values, longest first."""
    found = {
        spelt
        for part in hidden_parts(values)
        for spelt in _spellings(part)
        if len(spelt) >= SHORTEST and spelt not in MASK
    }
    return tuple(sorted(found, key=lambda spelt: (-len(spelt), spelt)))


def hidden_parts(values: Iterable[str]) -> tuple[str, ...]:
    """Return the parts of the values that can be redacted everywhere."""
    return tuple(dict.fromkeys(part for value in values for part in _parts(value) if can_be_hidden(part)))


def _parts(value: str) -> list[str]:
    """Return the value itself if it is a single line. Otherwise, return only its long lines that contain no spaces. The
    other lines contain names and armor.
    """
    lines = [line.strip() for line in value.splitlines()]
    return lines if len(lines) < 2 else [line for line in lines if " " not in line and len(line) >= 16]


def _spellings(value: str) -> Iterator[str]:
    raw = value.encode("utf-8", "surrogatepass")
    yield value
    for quoted in (quote(raw, safe=""), quote(raw), quote_plus(raw)):
        yield from (quoted, re.sub("%..", lambda found: found[0].lower(), quoted))
    for escaped in (json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]):
        yield from (escaped, escaped.replace("/", "\\/"), escaped.replace("\\", "\\\\").replace('"', '\\"'))
    yield shlex.quote(value).removeprefix("'").removesuffix("'")
    yield value.replace("'", "'\\''")
    yield re.sub(r"([^\w@%+=:,./-])", r"\\\1", value)
    yield repr(value)[1:-1]
    yield html.escape(value)
