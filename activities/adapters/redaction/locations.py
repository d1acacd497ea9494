"""Find secrets by their location: in a URL, a header, a key file, a line of `.pgpass`, a bot's token."""

import re
from base64 import b64decode
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from loom.activities.adapters.redaction.patterns import EDGE
from loom.activities.adapters.redaction.values import is_of_words, is_placeholder, is_token, is_url_password

ENOUGH: Final = 256
"""Characters of a value that are enough to recognize it."""

Span: TypeAlias = tuple[int, int]
"""Where a secret starts and ends."""


def positions(text: str, literal: str) -> Iterator[int]:
    """The positions of the literal, from the start on."""
    at = text.find(literal)
    while at >= 0:
        yield at
        at = text.find(literal, at + len(literal))


_USERINFO: Final = re.compile(
    r"://(?:[^\s:/?#@\"'`<>\\,;|\x1b]{0,200}:(?P<password>[^\s/?#\"'`<>\\\x1b]{1,300})|(?P<token>[A-Za-z0-9_-]{20,300}))"
    r"@(?=[\w\[.-])"
)


def userinfo(text: str) -> Iterator[Span]:
    """The password of `scheme://user:password@host`, or a token in place of the user."""
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
    """Credentials after `Bearer` and `Basic`."""
    for scheme, is_credential in (("bearer", _is_bearer), ("basic", _is_basic)):
        for at in positions(folded, scheme):
            found = _CREDENTIALS.match(text, at)
            if found is not None and is_credential(found["secret"]):
                yield found.span("secret")


def _is_bearer(value: str) -> bool:
    return is_token(value) or (len(value) >= 16 and not is_placeholder(value) and not is_of_words(value))


def _is_basic(value: str) -> bool:
    """Whether this is the base64 of `user:password`."""
    bare = value.rstrip("=")
    try:
        user, _, password = b64decode(bare + "=" * (-len(bare) % 4), validate=True).partition(b":")
    except ValueError:
        return False
    return bool(user and password) and user.isascii()


_VALUE: Final = r"\\{0,3}(?P<quote>[\"']?)(?P<secret>[^\s\"'\\$<{]{4,200})\\{0,3}(?P=quote)(?=\s|$|[;|&)])"
_OPTIONS: Final[dict[str, re.Pattern[str]]] = {
    "curl ": re.compile(rf"[ \t](?:-u|--user)[ =]?[\"']?[\w.@+-]{{1,64}}:{_VALUE}".replace("(?P=quote)", "[\"']?")),
    "docker login": re.compile(rf"[ \t]-p[ =]?{_VALUE}"),
    "sshpass": re.compile(rf"[ \t]-p[ ]?{_VALUE}"),
    "mysql": re.compile(rf"[ \t]-p{_VALUE}"),
    "redis-cli": re.compile(rf"[ \t](?:-a|--pass)[ ]{_VALUE}"),
}
"""Programs, and how a command line passes the password to them."""


def options(text: str) -> Iterator[Span]:
    """Passwords on command lines, in options whose names do not indicate it."""
    for program, option in _OPTIONS.items():
        done = 0
        for at in positions(text, program):
            if at < done:
                continue
            end = text.find("\n", at)
            done = len(text) if end < 0 else end
            for found in option.finditer(text, at, done):
                if is_url_password(found["secret"]):
                    yield found.span("secret")


_AUTHORIZATION: Final = re.compile(
    r"(?<=authorization)\\{0,3}[\"']?[ \t]{0,4}[:=][ \t]{0,4}\\{0,3}[\"']?"
    r"(?:[\w-]{1,30}[ \t]+)?(?P<secret>[A-Za-z0-9._~+/=-]{16,4000})",
    re.IGNORECASE,
)
_COOKIE: Final = re.compile(r"[\w.-]{1,60}=(?P<secret>[^\s;,\"'\\]{16,4000})")


def headers(text: str, folded: str) -> Iterator[Span]:
    """Values of `Authorization:` and `Cookie:`, with any scheme and name."""
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
    """The last field of `host:port:database:user:password`."""
    for port in _PGPASS_PORTS:
        for at in positions(text, port):
            found = _PGPASS.match(text, text.rfind("\n", 0, at) + 1)
            if found is not None and is_url_password(found["secret"]):
                yield found.span("secret")


_DISCORD: Final = re.compile(
    EDGE + r"(?P<id>[MNO][A-Za-z0-9]{22,27})\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40}(?![\w-])", re.ASCII
)


def discord_tokens(text: str, runs: Iterable[str]) -> Iterator[Span]:
    """Bot tokens, which start with the base64 of a number. `runs` are the long words of the text."""
    # A run may start with the end of an escape:  MTk…, %3DMTk…
    if any(_is_number(run[at:]) for run in runs for at in range(5) if run[at] in "MNO"):
        yield from (found.span() for found in _DISCORD.finditer(text) if _is_number(found["id"]))


def _is_number(text: str) -> bool:
    try:
        return b64decode(text + "=" * (-len(text) % 4)).isdigit()
    except ValueError:
        return False
