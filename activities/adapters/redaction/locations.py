"""Find secrets by their location: in a URL, in a header, in a `.pgpass` line, in the armor of a private key, or after a
name that indicates a secret.

Examples are `password=…`, `"api_key": "…"`, `--token …` and `Authorization: Bearer …`. A keyword in the lower-case text
locates the name. An anchored pattern then reads the value after the name. The value must also look like a secret,
because most values of such names in source code are expressions.
"""

import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from loom.activities.adapters.redaction.patterns import EDGE
from loom.activities.adapters.redaction.values import (
    is_of_words,
    is_password,
    is_placeholder,
    is_token,
    is_url_password,
)

ENOUGH: Final = 256
"""This number of characters is enough to recognize a value as a secret."""

Span: TypeAlias = tuple[int, int]
"""The start and the end of a secret."""


def positions(text: str, literal: str) -> Iterator[int]:
    """Yield the positions of the literal, in order."""
    at = text.find(literal)
    while at >= 0:
        yield at
        at = text.find(literal, at + len(literal))


_USERINFO: Final = re.compile(
    r"://(?:[^\s:/?#@\"'`<>\\,;|\x1b]{0,200}:(?P<password>[^\s/?#\"'`<>\\\x1b]{1,300})|(?P<token>[A-Za-z0-9_-]{20,300}))"
    r"@(?=[\w\[.-])"
)


def userinfo(text: str) -> Iterator[Span]:
    """Yield the password in `scheme://user:password@host`, or a token in place of the user."""
    for at in positions(text, "://"):
        found = _USERINFO.match(text, at)
        if found is None:
            continue
        if found["password"] is not None and is_url_password(found["password"]):
            yield found.span("password")
        if found["token"] is not None and is_token(found["token"]):
            yield found.span("token")


_CREDENTIALS: Final = re.compile(
    r"(?:bearer|basic)(?:%20|\+|[ \t])+\\{0,3}[\"']?(?P<secret>[A-Za-z0-9._~+/=-]{8,4000})", re.IGNORECASE
)


def authorization(text: str, folded: str) -> Iterator[Span]:
    """Yield the credentials that follow `Bearer` or `Basic`."""
    for scheme, is_credential in (("bearer", _is_bearer), ("basic", _is_basic)):
        for at in positions(folded, scheme):
            found = _CREDENTIALS.match(text, at)
            if found is not None and is_credential(found["secret"]):
                yield found.span("secret")


def _is_bearer(value: str) -> bool:
    return is_token(value) or (len(value) >= 16 and not is_placeholder(value) and not is_of_words(value))


def _is_basic(value: str) -> bool:
    """Whether the value is the base64 encoding of `user:password`."""
    bare = value.rstrip("=")
    try:
        user, _, password = b64decode(bare + "=" * (-len(bare) % 4), validate=True).partition(b":")
    except ValueError:
        return False
    return bool(user and password) and user.isascii()


_VALUE: Final = r"\\{0,3}(?P<quote>[\"']?)(?P<secret>[^\s\"'\\$<{]{4,200})\\{0,3}(?P=quote)(?=\s|$|[;|&)])"
LONGEST_COMMAND: Final = 2_000
"""Maximum length of a command that is followed to its next line."""

_OPTIONS: Final[dict[str, re.Pattern[str]]] = {
    "curl ": re.compile(
        r"[ \t](?:-u|--user)(?:=|[ \t]{0,4})[\"']?[^\s:\"'$<]{0,64}[\"']?:\\{0,3}[\"']?"
        r"(?P<secret>[^\s\"'\\$<{][^\s\"'\\<]{3,199})\\{0,3}[\"']?(?=\s|$|[;|&)])"
    ),
    "docker login": re.compile(rf"[ \t]-p[ =]?{_VALUE}"),
    "sshpass": re.compile(rf"[ \t]-p[ ]?{_VALUE}"),
    "mysql": re.compile(rf"[ \t]-p{_VALUE}"),
    "redis-cli": re.compile(rf"[ \t](?:-a|--pass)[ ]{_VALUE}"),
}
"""Programs, and the options that pass passwords to them."""


def options(text: str) -> Iterator[Span]:
    """Yield passwords in command-line options whose names don't indicate a password."""
    for program, option in _OPTIONS.items():
        done = 0
        for at in positions(text, program):
            if at < done:
                continue
            done = _end_of_command(text, at)
            for found in option.finditer(text, at, done):
                if is_url_password(found["secret"]):
                    yield found.span("secret")


def _end_of_command(text: str, at: int) -> int:
    """Return the end of a command. A backslash at the end of a line continues the command on the next line."""
    end = text.find("\n", at)
    while 0 < end < at + LONGEST_COMMAND and text[end - 1] == "\\":
        end = text.find("\n", end + 1)
    return len(text) if end < 0 else end


_AUTHORIZATION: Final = re.compile(
    r"(?<=authorization)\\{0,3}[\"']?[ \t]{0,4}[:=][ \t]{0,4}\\{0,3}[\"']?"
    r"(?:[\w-]{1,30}[ \t]+)?(?P<secret>[A-Za-z0-9._~+/=@-]{16,4000})",
    re.IGNORECASE,
)
_COOKIE: Final = re.compile(r"[\w.-]{1,60}=(?P<secret>[^\s;,\"'\\]{16,4000})")


def headers(text: str, folded: str) -> Iterator[Span]:
    """Yield the values of `Authorization:` and `Cookie:` headers, whatever the scheme or the cookie's name."""
    for at in positions(folded, "authorization"):
        found = _AUTHORIZATION.match(text, at + len("authorization"))
        if found is not None and is_token(found["secret"][:ENOUGH]):
            yield found.span("secret")
    done = 0
    for at in positions(folded, "cookie: "):
        if at >= done:
            end = text.find("\n", at)
            done = len(text) if end < 0 else end
            cookies = _COOKIE.finditer(text, at, done)
            yield from (each.span("secret") for each in cookies if is_token(each["secret"][:ENOUGH]))


_PGPASS: Final = re.compile(
    r"(?m)^[\w.*/-]{1,255}:(?:\d{2,5}|\*):[\w.*$-]{1,63}:[\w.*@$-]{1,63}:(?P<secret>(?:\\.|[^\s:\\]){1,255})[ \t]*\r?$"
)
_PGPASS_PORTS: Final = (":5432:", ":*:", ":6432:")


def pgpass(text: str) -> Iterator[Span]:
    """Yield the last field of `host:port:database:user:password`."""
    for port in _PGPASS_PORTS:
        for at in positions(text, port):
            found = _PGPASS.match(text, text.rfind("\n", 0, at) + 1)
            if found is not None and is_url_password(found["secret"]):
                yield found.span("secret")


_SECRET_OBJECT: Final = re.compile(r"(?m)^[ \t]{0,4}kind:[ \t]{0,4}[\"']?secret[\"']?[ \t]*\r?$", re.IGNORECASE)
_DATA: Final = re.compile(
    r"(?m)^(?P<indent>[ \t]{0,4})data:[ \t]*\r?\n(?P<lines>(?:(?P=indent)[ \t]+[^\n]*\n?){1,200})"
)
_DATA_VALUE: Final = re.compile(
    r"(?m)^[ \t]+(?:[\w.-]{1,253}:[ \t]*)?[\"']?(?P<secret>[A-Za-z0-9+/]{10,}={0,3})[\"']?[ \t]*\r?$"
)
LONGEST_MANIFEST: Final = 20_000
"""Maximum number of characters before and after `kind: Secret` that belong to the same manifest."""


def kubernetes_secrets(text: str, folded: str) -> Iterator[Span]:
    """Yield the base64 values in the `data` of Kubernetes manifests whose kind is `Secret`."""
    done = 0
    for at in positions(folded, "kind:"):
        if at < done or _SECRET_OBJECT.match(text, text.rfind("\n", done, at) + 1) is None:
            continue
        before = max(done, at - LONGEST_MANIFEST)
        start = max(before, text.rfind("\n---", before, at))
        done = text.find("\n---", at, at + LONGEST_MANIFEST)
        done = min(len(text), at + LONGEST_MANIFEST) if done < 0 else done
        data = _DATA.search(text, start, done)
        if data is not None:
            yield from (each.span("secret") for each in _DATA_VALUE.finditer(text, *data.span("lines")))


_DISCORD: Final = re.compile(
    EDGE + r"(?P<id>[MNO][A-Za-z0-9]{22,27})\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40}(?![\w-])", re.ASCII
)


def discord_tokens(text: str, runs: Iterable[str]) -> Iterator[Span]:
    """Yield bot tokens, which start with the base64 encoding of a number. `runs` contains the text's long words."""
    # A run may start with the end of an escape sequence:  MTk…, %3DMTk…
    if any(_is_number(run[at:]) for run in runs for at in range(5) if run[at] in "MNO"):
        yield from (found.span() for found in _DISCORD.finditer(text) if _is_number(found["id"]))


def _is_number(text: str) -> bool:
    try:
        return b64decode(text + "=" * (-len(text) % 4)).isdigit()
    except ValueError:
        return False


CONTEXT: Final = 120
"""Number of characters to examine before a name."""

_GAP: Final = r"(?:[ \t]|\x1b\[[0-9;]{0,8}[mK]){0,8}"
"""Blanks and terminal color codes."""

_TAIL: Final = r"(?P<tail>[A-Za-z0-9_.\-]{0,24})"
_CLOSED: Final = r"(?P<closed>\\{0,3}[\"'`]\]?)?"
_ELSEWHERE: Final = r",?[ \t]{0,4}\\{0,3}[\"']?value\\{0,3}[\"']?[ \t]{0,4}[:=]"
"""Matches a name and a value in two members of an object: `"name": "TOKEN", "value": "…"`."""
_NEXT_LINE: Final = r"\r?\n[ \t]{1,24}"
_SEPARATOR: Final = (
    rf"(?:=>|[:?+.|]{{1,3}}=|={{1,3}}|:{_GAP}[|>][+-]?[ \t]?{_NEXT_LINE}"
    rf"|:(?:{_GAP}[A-Za-z_][\w.\[\]| ]{{0,40}}=)?|is:?(?=[ \t])|{_ELSEWHERE}"
    rf"|(?P<comma>,)|(?P<tag>>(?:{_NEXT_LINE})?)"
    r"|(?P<typed>(?<=[ \t])[A-Za-z][\w.*\[\]]{0,20}[ \t]{1,4}=)|(?P<space>(?<=[ \t])|[ \t]))"
)
_QUOTED: Final = r"[bru]?\\{0,3}(?P<quote>[\"'`])(?P<quoted>[^\"'`\r\n\x1b]{1,4000}?)\\{0,3}(?P=quote)"
_BARE: Final = r"(?P<bare>[^\s\"'`,;<>(){}\[\]\\|\x1b\x00-\x1f]{6,256})(?P<after>[(\[{]?)"

_REST: Final = re.compile(r"[A-Za-z0-9+/=_.-]*")
"""Matches the rest of a value that is too long for the pattern."""

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
"""Matches suffixes that mark a name's value as not secret. Such a value describes a secret or names an author."""

_KEYS: Final = """
api access private account auth encryption signing master shared storage app application service license function client
sharedaccess subscription primary secondary
"""
_KEY_OF: Final = re.compile("|".join(rf"(?<={of})|(?<={of}[_\- .])" for of in _KEYS.split()), re.IGNORECASE)
"""Matches the types of keys that are secret."""

_ORDINARY_KEYS: Final = "FOREIGN PUBLIC PARTITION SORT CACHE IDEMPOTENCY OBJECT ROW UNIQUE"
_KEY_VARIABLE: Final = re.compile(
    "(?<=[A-Z0-9]_)KEY(?!_?[A-Za-z])" + "".join(f"(?<!{kind}_KEY)" for kind in _ORDINARY_KEYS.split())
)
"""Matches the end of a variable's name, such as `HEROKU_KEY`."""

_NEXT_PARAMETER: Final = re.compile(r"&(?:amp;)?(?=&|\Z|[\w.-]+=)")
"""Matches the end of a query parameter's value."""

_FLAG: Final = re.compile(r"(?:^|\s|[\"'])--?[A-Za-z0-9_\-]{0,24}\Z")
_LOGIN: Final = re.compile(r"(?:\blogin[ \t]+\S{1,80}[ \t]+|^[ \t]*(?:require)?)\Z", re.MULTILINE)
_TYPE: Final = re.compile(r"(?<=[\w:*])(?<!env):\w*\Z|public\w*\Z", re.IGNORECASE)
"""Matches names that are part of a longer name, such as `AWS::IAM::AccessKey` or `arn:…:secret:…`."""
_SQL: Final = re.compile(r"\b(?:with|user|role|encrypted|set)\b[^;\n]{0,80}\Z", re.IGNORECASE)


def _always(_text: str, _at: int) -> bool:
    return True


def _is_key(text: str, at: int) -> bool:
    return bool(_KEY_OF.match(text, at) or _KEY_VARIABLE.match(text, at))


_KEYWORDS: Final[dict[str, tuple[Callable[[str, int], bool], Callable[[str], bool]]]] = {
    "pass": (_always, is_password),
    "pwd": (_always, is_password),
    "secret": (_always, is_password),
    "credential": (_always, is_token),
    "_auth": (_always, is_token),
    "token": (_always, is_token),
    "key": (_is_key, is_token),
}
"""Maps each keyword to two functions. The first decides from the context whether the keyword refers to a secret, and
the second decides whether a value is a secret.
"""


_ENDS_A_VALUE: Final = re.compile("[\"'`\\\\\r\n\x1b]")


def is_secret_under(name: str, value: str) -> bool:
    """Whether the value is a secret if it is assigned to this name."""
    # The check builds an assignment, so the value must not contain characters that would end the assignment.
    plain = _ENDS_A_VALUE.sub("!", value[:ENOUGH])
    return any(True for _ in assigned(f'{name}="{plain}"', f'{name}="{plain}"'.lower()))


def assigned(text: str, folded: str) -> Iterator[Span]:
    """Yield values whose names indicate a secret. `folded` is the text in lower case and has the same length."""
    for word, (stands, is_secret) in _KEYWORDS.items():
        at = folded.find(word)
        while at >= 0:
            after = at + len(word)
            found = _ASSIGNED.match(text, after) if stands(text, at) else None
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
    """Whether the text between the name and the value assigns the value to the name."""
    if _TYPE.search(text, max(0, at - CONTEXT), at):
        return False
    is_quoted = found["quoted"] is not None
    if found["comma"] is not None:
        if is_quoted:
            return found["closed"] is not None and len(found["quoted"]) >= 8
        return found["closed"] is None and found.end("comma") == found.start("bare") and is_token(found["bare"])
    if found["tag"] is not None:
        return found["closed"] is None and text[found.end() : found.end() + CONTEXT].lstrip().startswith("<")
    if found["typed"] is not None:
        return is_quoted
    if found["space"] is not None:
        named = found["tail"].lower() in ("word", "wd", "phrase") or text.startswith("requirepass", at - 7)
        ways = (_FLAG, *[_LOGIN] * named, *[_SQL] * is_quoted)
        return any(way.search(text, max(0, at - CONTEXT), at) for way in ways)
    return True


LONGEST_KEY: Final = 32_768
"""Maximum number of characters in a private key with its armor. A 16,384-bit RSA key has 13,000 characters."""

_BEGIN: Final = re.compile(r"-----BEGIN[A-Z0-9 ]{0,40} PRIVATE KEY(?: BLOCK)?-----")
_END: Final = re.compile(r"-----END[A-Z0-9 ]{0,40} PRIVATE KEY(?: BLOCK)?-----")
_MORE: Final = re.compile(r"(?:(?!-----)[\s\S]){0,80}?[A-Za-z0-9+/=]{16,}")
"""Matches text that can surround a line of a key: a line end, quotes, a number, an indent or an armor header."""
_CLOSE: Final = re.compile(rf"(?:(?!-----)[\s\S]){{0,80}}?{_END.pattern}")
_LINE: Final = re.compile(r"[^A-Za-z0-9+/=]{0,40}(?:\\{1,4}n)?[A-Za-z0-9+/=]{40,}")
_LAST_LINE: Final = re.compile(r"[^A-Za-z0-9+/=]{1,8}[A-Za-z0-9+/=]{1,39}\Z")
_BARE_LINE: Final = re.compile(r"[ \t\"']{0,40}[A-Za-z0-9+/=]{16,100}(?:\\n)?[\"',+ \t]{0,8}\r?\n?")


def private_keys(text: str) -> Iterator[Span]:
    """Yield private keys with their armor. For a truncated key, yield the available part."""
    for at in positions(text, "-----BEGIN"):
        if (begin := _BEGIN.match(text, at)) is not None and (end := _key_end(text, begin.end())) is not None:
            yield at, end
    for at in positions(text, "-----END"):
        if (end_line := _END.match(text, at)) is not None and (start := start_of_lines(text, at)) < at:
            yield start, end_line.end()


def open_key(text: str) -> int | None:
    """Return the start of a key whose end isn't in the text, or None if there is no such key."""
    at = text.rfind("-----BEGIN")
    begin = _BEGIN.match(text, at) if at >= 0 else None
    return None if begin is None or _END.search(text, begin.end()) else at


def start_of_lines(text: str, end: int) -> int:
    """Return the start of the lines that precede `end` and look like lines of a key."""
    start = end
    while end - start < LONGEST_KEY:
        before = text.rfind("\n", 0, max(0, start - 1)) + 1
        if before >= start or not _BARE_LINE.fullmatch(text, before, start):
            break
        start = before
    return start


def _key_end(text: str, at: int) -> int | None:
    closed = _run(_MORE, text, at)
    if closed > at and (end := _CLOSE.match(text, closed)) is not None:
        return end.end()
    cut = _run(_LINE, text, at)
    last = _LAST_LINE.match(text, cut)
    return last.end() if last is not None else cut if cut > at else None


def _run(pattern: re.Pattern[str], text: str, at: int) -> int:
    limit = at + LONGEST_KEY
    while at < limit and (found := pattern.match(text, at)) is not None:
        at = found.end()
    return at
