"""Parse web page URLs strictly and identically for the rules, the resolver and the request.

Programs interpret unusual URLs in different ways, so a request could reach a host that no rule has checked. The parser
therefore rejects URLs that browsers would repair: other spellings of IPv4, credentials, backslashes, control
characters, and letters that are normalized into other letters.
"""

import re
from collections.abc import Set
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final, NoReturn
from unicodedata import name, normalize
from urllib.parse import quote, urljoin

from loom.domain.core.errors import ToolValidationError

LONGEST: Final = 8_000
"""The maximum number of characters in a URL."""

_PORTS: Final = {"http": 80, "https": 443}
_URL: Final = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#]*)([^#]*)(?:#.*)?", re.IGNORECASE | re.DOTALL | re.ASCII)
_AUTHORITY: Final = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::([0-9]{0,5}))?")
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_KEPT: Final = "%/:?[]@!$&'()*+,;=-._~"
"""The characters of the path and query that remain unchanged. All other characters are percent-encoded."""


_TOGETHER: Final = (
    {"LATIN", "CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"},
    {"LATIN", "CJK", "HANGUL"},
    {"LATIN", "CJK", "BOPOMOFO"},
)
"""The scripts that one name may combine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WebUrl:
    """A page's URL."""

    scheme: str
    """`http` or `https`."""
    host: str
    """A host name in lowercase ASCII without a final dot, or an IP address. IPv6 addresses have no brackets."""
    port: int
    target: str
    """The path and query, percent-encoded."""

    @property
    def authority(self) -> str:
        """The host and port, as used in the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        """Return the complete URL, in ASCII."""
        return f"{self.scheme}://{self.authority}{self.target}"


def web_url(text: str) -> WebUrl:
    """Parse a URL. Raises ToolValidationError if the URL is invalid. The message explains the problem."""
    text = text.strip()
    if len(text) > LONGEST:
        _refuse(f"it is longer than {LONGEST} characters", "ask for less in one request")
    if any(not char.isprintable() or char.isspace() or char == "\\" for char in text):
        _refuse("it contains a space, a backslash or a control character", "percent-encode it (%20, %5C)")
    match = _URL.fullmatch(text)
    if match is None or match[1].lower() not in _PORTS:
        _refuse("it does not begin with http:// or https://", "only web pages can be fetched")
    scheme = match[1].lower()
    host, port = _place(match[2], _PORTS[scheme])
    target = quote(match[3], safe=_KEPT)
    return WebUrl(scheme=scheme, host=host, port=port, target=target if target.startswith("/") else f"/{target}")


def joined(base: WebUrl, location: str) -> WebUrl:
    """Return the URL that a redirect leads to. Raises ToolValidationError if the URL is invalid."""
    try:
        target = urljoin(str(base), location.strip().replace(" ", "%20"))
    except ValueError:
        _refuse("it cannot be read", "write it as https://host/path")
    return web_url(target)


def host_name(text: str) -> str:
    """Return a host in the form that the resolver expects. Raises ToolValidationError if the host is invalid."""
    host = _ascii(normalize("NFC", text).lower()).removesuffix(".")
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return _ipv4(host)
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        _refuse(f"{text[:80]!r} is not a host name", "write it as https://host/path")
    return host


def has_mixed_scripts(host: str) -> bool:
    """Whether a label of the host has letters of several scripts, as names have that imitate others.

    Combinations that are common in Japanese, Korean and Chinese are not mixed, see the highly restrictive level of
    Unicode Technical Standard 39.
    """
    labels = (label.encode("ascii").decode("idna") if label.startswith("xn--") else label for label in host.split("."))
    return any(not _is_one_script({name(char, "").split(" ")[0] for char in each if char.isalpha()}) for each in labels)


def _is_one_script(scripts: Set[str]) -> bool:
    return len(scripts) <= 1 or any(scripts <= together for together in _TOGETHER)


def _place(authority: str, default: int) -> tuple[str, int]:
    if "@" in authority:
        _refuse("it contains a user name", "leave out the part before the @")
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        _refuse(f"{authority[:80]!r} is not a host with a port", "write it as https://host:port/path")
    port = int(match[2] or default)
    if not 0 < port < 65_536:
        _refuse(f"there is no port {port}", "leave it out, or give one from 1 to 65535")
    is_ipv6 = match[1].startswith("[")
    return (_ipv6(match[1][1:-1]) if is_ipv6 else host_name(match[1])), port


def _ascii(host: str) -> str:
    """Convert letters in other scripts to their `xn--` form. Raises ToolValidationError if a letter would be normalized
    into a different name.
    """
    if host.isascii():
        return host
    try:
        encoded = host.encode("idna")
        is_stable = encoded.decode("idna") == host
    except UnicodeError:
        is_stable = False
    if not is_stable:
        _refuse(f"{host[:80]!r} can be read as more than one name", "write it in ASCII, or in its xn-- form")
    return encoded.decode("ascii")


def _ipv4(host: str) -> str:
    try:
        return str(IPv4Address(host))
    except ValueError:
        _refuse(f"{host[:80]!r} is an odd spelling of an address", "write four decimal numbers, as in 93.184.215.14")


def _ipv6(text: str) -> str:
    try:
        address = IPv6Address(text)
    except ValueError:
        _refuse(f"[{text[:80]}] is not an IPv6 address", "write it as in [2606:4700::1111]")
    if address.scope_id is not None or address.ipv4_mapped is not None:
        _refuse("it has a zone in its address, or an IPv4 address as IPv6", "write the plain address")
    return str(address)


def _refuse(wrong: str, instead: str) -> NoReturn:
    raise ToolValidationError(f"the `url` cannot be fetched: {wrong}; {instead}")
