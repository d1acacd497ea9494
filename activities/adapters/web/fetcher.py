"""Fetch pages only from the public web, as a protection against server-side request forgery (SSRF).

Each fetch resolves the host once. If any of the host's addresses isn't public, the fetch is rejected. The fetcher then
connects to one of the resolved addresses and ignores later DNS changes. The host header, SNI and the certificate check
still use the host name. The fetcher doesn't use proxies, cookies, credentials or persistent connections.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import cached_property
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, TypeAlias

from loom.activities.toolbox.built_in.http_fetch import BODY_LIMIT, WebAnswer
from loom.domain.core.errors import ToolExecutionError, ToolExecutionTimeout, ToolValidationError
from loom.domain.web.addresses import EVERYWHERE, Address, Network, obstacle, read_opening
from loom.domain.web.urls import WebUrl, joined

if TYPE_CHECKING:  # imported with the first fetch, because most workers fetch nothing
    import httpx2

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""A function that returns all addresses of a host, preferred addresses first. It raises OSError if the lookup fails."""

REDIRECTS: Final = 5
_TRIED: Final = 4
"""Maximum number of addresses to try, one after the other, for one host."""
_CONNECT: Final = 5.0
_SILENCE: Final = 20.0
"""Maximum number of seconds without data."""

_HEADERS: Final = {
    "User-Agent": "loom-agents (http_fetch)",
    "Accept": "text/html,application/xhtml+xml,text/*;q=0.9,application/json;q=0.9,*/*;q=0.5",
    "Accept-Language": "en,*;q=0.5",
    "Accept-Encoding": "gzip, deflate",
    "Connection": "close",
}
_DECODED: Final = frozenset({"", "identity", "gzip", "deflate"})
"""The encodings to accept. A response may have only one of them, because a decoder of nested compression can run
indefinitely without any output.
"""

_MOVED: Final = frozenset({301, 302, 303, 307, 308})
_MEDIA_TYPE: Final = re.compile(r"[a-z0-9.+-]{1,60}/[a-z0-9.+-]{1,60}")
_CHARSET: Final = re.compile(r"charset\s*=\s*[\"']?\s*([\w:.-]{1,40})", re.IGNORECASE | re.ASCII)
_WAIT: Final = re.compile(r"[0-9]{1,9}|[A-Za-z]{3}, [0-9A-Za-z :]{10,30}")


class PinnedFetcher:
    """Fetches pages over connections that are pinned to checked addresses."""

    def __init__(
        self,
        *,
        allowed_private: Sequence[str] = (),
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`allowed_private` permits hosts or networks that aren't public (`wiki.corp`, `10.0.0.0/8`). Raises BadRequest
        if an entry is invalid.

        By default, `tls` uses the system's certificate store or the one in SSL_CERT_FILE.
        """
        self._opening = read_opening(allowed_private)
        self._resolve = resolve or _resolve
        self._given_tls = tls

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        import httpx2  # noqa: PLC0415

        return self._given_tls or httpx2.create_ssl_context()  # reading the certificates takes 50 ms

    async def fetch(self, url: WebUrl, limit: float) -> WebAnswer:
        """Fetch the page with GET. Raises ToolExecutionTimeout if this takes longer than `limit` seconds, and
        ToolExecutionError if the fetch fails.
        """
        import httpx2  # noqa: PLC0415

        try:
            async with asyncio.timeout(limit) as whole:
                return await self._fetch(url)
        except httpx2.TimeoutException:
            raise _too_slow(url, "it did not answer") from None
        except TimeoutError:
            if not whole.expired():
                raise
            raise _too_slow(url, f"it took longer than {limit:g} s") from None
        except httpx2.HTTPError as error:
            raise ToolExecutionError(
                f"{url} could not be fetched: {str(error)[:300] or type(error).__name__}; check the URL, "
                "or try another source"
            ) from None

    async def _fetch(self, url: WebUrl) -> WebAnswer:
        addresses = await self._addresses(url)
        for _ in range(REDIRECTS + 1):
            async with self._asked(url, addresses) as response:
                target = _target(url, response)
                if target is None:
                    return await _answer(url, response)
            if not _is_same_place(url, target):
                self._look_at(target)
                return WebAnswer(url=url, status=response.status_code, moved_to=target)
            url = target
        raise ToolExecutionError(f"{url} redirects more than {REDIRECTS} times: try another source")

    async def _addresses(self, url: WebUrl) -> list[Address]:
        """Return the host's addresses. Raises an error if any of them isn't permitted."""
        found = [address] if (address := _literal(url.host)) else await self._resolved(url)
        opened = self._opening.of(url.host)
        for address in found:
            _require_open(url, address, opened)
        return found[:_TRIED]

    async def _resolved(self, url: WebUrl) -> list[Address]:
        if url.host == "localhost" or url.host.endswith(".localhost"):
            # RFC 6761 requires that these names never be sent to a resolver.
            return [ip_address("127.0.0.1"), ip_address("::1")]
        try:
            found = [ip_address(text) for text in await self._resolve(url.host, url.port)]
        except OSError as error:
            raise _no_host(url, error.strerror or "no answer") from None
        if not found:
            raise _no_host(url, "it has no address")
        return list(dict.fromkeys(found))

    def _look_at(self, url: WebUrl) -> None:
        """Reject URLs that would also be rejected if the model requested them directly."""
        if address := _literal(url.host):
            _require_open(url, address, self._opening.of(url.host))

    @asynccontextmanager
    async def _asked(self, url: WebUrl, addresses: Sequence[Address]) -> "AsyncIterator[httpx2.Response]":
        """Yield the response with an unread body. Each request uses a separate transport, so that a connection is never
        shared by two host names.
        """
        import httpx2  # noqa: PLC0415

        async with httpx2.AsyncHTTPTransport(verify=self._tls) as transport:
            response = await _first_answer(transport, [_request(url, address) for address in addresses])
            try:
                yield response
            finally:
                await response.aclose()


async def _resolve(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(place[0]) for *_, place in found]


def _literal(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _request(url: WebUrl, address: Address) -> "httpx2.Request":
    """Return a request to this address. The host header and SNI contain the host's name."""
    import httpx2  # noqa: PLC0415

    place = httpx2.URL(scheme=url.scheme, host=str(address), port=url.port, raw_path=url.target.encode("ascii"))
    timeouts = {"connect": _CONNECT, "read": _SILENCE, "write": _SILENCE, "pool": _CONNECT}
    return httpx2.Request(
        "GET",
        place,
        headers={"Host": url.authority, **_HEADERS},
        extensions={"sni_hostname": url.host, "timeout": timeouts},
    )


async def _first_answer(
    transport: "httpx2.AsyncHTTPTransport", requests: "Sequence[httpx2.Request]"
) -> "httpx2.Response":
    """Return the response from the first address that accepts a connection."""
    import httpx2  # noqa: PLC0415

    *others, last = requests
    for request in others:
        try:
            return await transport.handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            continue
    return await transport.handle_async_request(last)


def _target(url: WebUrl, response: "httpx2.Response") -> WebUrl | None:
    """Return the redirect target, or None if the response is final."""
    location = response.headers.get("location")
    if response.status_code not in _MOVED or not location:
        return None
    try:
        return joined(url, location)
    except ToolValidationError as error:
        raise ToolExecutionError(f"{url} redirects to a URL that is not allowed: {error.message}") from None


def _is_same_place(url: WebUrl, target: WebUrl) -> bool:
    """Whether both URLs have the same host and the redirect doesn't downgrade https to http."""
    return url.host == target.host and (target.scheme == "https" or url.scheme == "http")


async def _answer(url: WebUrl, response: "httpx2.Response") -> WebAnswer:
    coding = response.headers.get("content-encoding", "").strip().lower()
    if coding not in _DECODED:
        raise ToolExecutionError(f"{url} uses a compression that was not requested: try another source")
    declared = response.headers.get("content-type", "")
    media_type = declared.partition(";")[0].strip().lower()
    charset = _CHARSET.search(declared)
    wait = response.headers.get("retry-after", "")
    body, whole = await _body(response)
    return WebAnswer(
        url=url,
        status=response.status_code,
        media_type=media_type if _MEDIA_TYPE.fullmatch(media_type) else "",
        charset=charset[1] if charset else "",
        body=body,
        whole=whole,
        retry_after=wait if _WAIT.fullmatch(wait) else "",
    )


async def _body(response: "httpx2.Response") -> tuple[bytes, bool]:
    """Return the body up to the limit, and whether the body is complete. The body is decompressed in chunks, so that a
    decompression bomb can't exceed the limit.
    """
    body = bytearray()
    async with aclosing(response.aiter_bytes()) as pieces:
        async for piece in pieces:
            body += piece
            if len(body) > BODY_LIMIT or response.num_bytes_downloaded > BODY_LIMIT:
                return bytes(body[:BODY_LIMIT]), False
    return bytes(body), True


def _require_open(url: WebUrl, address: Address, opened: Sequence[Network]) -> None:
    if what := obstacle(address, opened):
        hint = (
            "; the operator of the worker can allow a host with LOOM_FETCH_ALLOW"
            if not obstacle(address, EVERYWHERE)
            else ""
        )
        raise ToolExecutionError(
            f"{url.host} is not allowed: it is {what}, and only the public web can be fetched{hint}"
        )


def _no_host(url: WebUrl, why: str) -> ToolExecutionError:
    return ToolExecutionError(f"the host {url.host} was not found ({why}): check its spelling, or try another source")


def _too_slow(url: WebUrl, how: str) -> ToolExecutionTimeout:
    return ToolExecutionTimeout(f"{url} is too slow: {how}; try again later, or try another source")
