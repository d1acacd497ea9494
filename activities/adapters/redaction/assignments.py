"""Find secrets by the name before them: `password=…`, `"api_key": "…"`, `--token …`, `Authorization: Bearer …`.

A keyword in the lower-case text locates the name. One anchored pattern reads what follows it, and the value is compared
with what secrets look like, since most values of such names in source code are code.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final

from loom.activities.adapters.redaction.locations import ENOUGH, Span
from loom.activities.adapters.redaction.values import is_of_words, is_password, is_token

CONTEXT: Final = 120
"""Characters before a name that are examined."""

_GAP: Final = r"(?:[ \t]|\x1b\[[0-9;]{0,8}[mK]){0,8}"
"""Blanks and terminal color codes."""

_TAIL: Final = r"(?P<tail>[A-Za-z0-9_.\-]{0,24})"
_CLOSED: Final = r"(?P<closed>\\{0,3}[\"'`]\]?)?"
_ELSEWHERE: Final = r",?[ \t]{0,4}\\{0,3}[\"']?value\\{0,3}[\"']?[ \t]{0,4}[:=]"
"""Name and value as two members: `"name": "TOKEN", "value": "…"`."""
_SEPARATOR: Final = (
    rf"(?:=>|:=|={{1,3}}|:(?:{_GAP}[A-Za-z_][\w.\[\]| ]{{0,40}}=)?|is:?(?=[ \t])|{_ELSEWHERE}"
    r"|(?P<comma>,)|(?P<tag>>)|(?P<space>(?<=[ \t])|[ \t]))"
)
_QUOTED: Final = r"[bru]?\\{0,3}(?P<quote>[\"'`])(?P<quoted>[^\"'`\r\n\x1b]{1,4000}?)\\{0,3}(?P=quote)"
_BARE: Final = r"(?P<bare>[^\s\"'`,;<>(){}\[\]\\|\x1b\x00-\x1f]{6,256})(?P<after>[(\[{]?)"

_REST: Final = re.compile(r"[A-Za-z0-9+/=_.-]*")
"""The rest of a value that is longer than the pattern reads."""

_ASSIGNED: Final = re.compile(
    rf"{_TAIL}{_CLOSED}{_GAP}{_SEPARATOR}{_GAP}(?:{_QUOTED}|{_BARE})", re.IGNORECASE | re.ASCII
)

_ABOUT: Final = """
id name uri url file path dir type kind count len length size hash digest sha\\d* md5 checksum fingerprint field header
prefix suffix pattern regex re class format policy arn ref version expiry expires expiration ttl hint label title text
message error help prompt input callback handler func function usage limit endpoint algorithm alg method public env var
index schema column
"""
_OTHER_THING: Final = re.compile(
    rf"^(?:or|smanager)|(?:^(?:word|wd|phrase)?|[_.\-]|(?-i:(?<=[a-z])(?=[A-Z])))(?:{'|'.join(_ABOUT.split())})s?$",
    re.IGNORECASE,
)
"""Suffixes of names whose value describes the secret but is not the secret, or is an author."""

_KEYS: Final = """
api access private account auth encryption signing master shared storage app application service license function client
sharedaccess subscription primary secondary
"""
_KEY_OF: Final = re.compile("|".join(rf"(?<={of})|(?<={of}[_\- .])" for of in _KEYS.split()))
"""Kinds of keys that are secret."""

_NEXT_PARAMETER: Final = re.compile(r"&(?:amp;)?(?=&|\Z|[\w.-]+=)")
"""Where the value of a query parameter ends."""

_FLAG: Final = re.compile(r"(?:^|\s|[\"'])--?[A-Za-z0-9_\-]{0,24}\Z")
_LOGIN: Final = re.compile(r"(?:\blogin[ \t]+\S{1,80}[ \t]+|^[ \t]*(?:require)?)\Z", re.MULTILINE)
_TYPE: Final = re.compile(r"(?<=[\w:*])(?<!env):\w*\Z|public\w*\Z", re.IGNORECASE)
"""The name is part of a longer one, such as `AWS::IAM::AccessKey` or `arn:…:secret:…`."""
_SQL: Final = re.compile(r"\b(?:with|user|role|encrypted|set)\b[^;\n]{0,80}\Z", re.IGNORECASE)


def _always(_text: str, _at: int) -> bool:
    return True


def _is_key(text: str, at: int) -> bool:
    return bool(_KEY_OF.match(text, at))


_KEYWORDS: Final[dict[str, tuple[Callable[[str, int], bool], Callable[[str], bool]]]] = {
    "pass": (_always, is_password),
    "pwd": (_always, is_password),
    "secret": (_always, is_password),
    "credential": (_always, is_token),
    "_auth": (_always, is_token),
    "token": (_always, is_token),
    "key": (_is_key, is_token),
}
"""For each keyword: whether it refers to a secret here, and whether a value is one."""


_ENDS_A_VALUE: Final = re.compile("[\"'`\\\\\r\n\x1b]")


def is_secret_under(name: str, value: str) -> bool:
    """Whether this is the value of a secret if it belongs to that name."""
    # Written as an assignment, so the value must not contain what would end one.
    plain = _ENDS_A_VALUE.sub("!", value[:ENOUGH])
    return any(True for _ in assigned(f'{name}="{plain}"', f'{name}="{plain}"'.lower()))


def assigned(text: str, folded: str) -> Iterator[Span]:
    """Values that names declare to be secrets. `folded` is the text in lower case, with the same length."""
    for word, (stands, is_secret) in _KEYWORDS.items():
        at = folded.find(word)
        while at >= 0:
            after = at + len(word)
            found = _ASSIGNED.match(text, after) if stands(folded, at) else None
            if found is not None and (span := _value(text, at, found, is_secret)) is not None:
                yield span
                after = span[1]
            at = folded.find(word, after)


def _value(text: str, at: int, found: re.Match[str], is_secret: Callable[[str], bool]) -> Span | None:
    if _OTHER_THING.search(found["tail"]) or not _joins(text, at, found):
        return None
    if found["quoted"] is not None:
        return found.span("quoted") if is_secret(found["quoted"][:ENOUGH]) else None
    value = _NEXT_PARAMETER.split(found["bare"], 1)[0].rstrip(".:!?")
    if found["after"] or len(value) < 8 or (len(value) >= 12 and is_of_words(value)):
        return None
    if not is_secret(value):
        return None
    start = found.start("bare")
    rest = _REST.match(text, found.end("bare")) if len(value) == ENOUGH else None
    return start, start + len(value) if rest is None else rest.end()


def _joins(text: str, at: int, found: re.Match[str]) -> bool:
    """Whether the text between name and value assigns one to the other."""
    if _TYPE.search(text, max(0, at - CONTEXT), at):
        return False
    is_quoted = found["quoted"] is not None
    if found["comma"] is not None:
        return is_quoted and found["closed"] is not None and len(found["quoted"]) >= 8
    if found["tag"] is not None:
        return found["closed"] is None and text.startswith("<", found.end())
    if found["space"] is not None:
        named = found["tail"].lower() in ("word", "wd", "phrase") or text.startswith("requirepass", at - 7)
        ways = (_FLAG, *[_LOGIN] * named, *[_SQL] * is_quoted)
        return any(way.search(text, max(0, at - CONTEXT), at) for way in ways)
    return True
