"""Post notifications to a URL, signed as the Standard Webhooks specification says (standardwebhooks.com)."""

import asyncio
import base64
import hmac
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

from loom.domain.core.errors import NotDeliveredError

TIME_LIMIT: Final = 15.0
"""Seconds within which a receiver must answer."""
SHORTEST_WAIT: Final = 1.0
LONGEST_WAIT: Final = 3600.0
"""Minimum and maximum number of seconds that a receiver can ask for before the next attempt."""
_GONE: Final = 410
"""The answer of a receiver that wants no more messages."""


class Webhook:
    """Implements `Receiver`. The URL is the operator's own, so it may be in a private network; redirects count as
    failures.
    """

    def __init__(self, url: str, secret: str | None) -> None:
        """`secret` has the form `whsec_BASE64`. Without one, messages aren't signed."""
        self._url = url
        self._key = None if secret is None else base64.b64decode(secret.removeprefix("whsec_"))

    async def send(self, message_id: str, body: bytes) -> None:
        """See the port. The error never contains the URL, which may contain a password."""
        import httpx2  # noqa: PLC0415 - most workers send no notifications

        headers = {"content-type": "application/json", **self._headers(message_id, body)}
        try:
            # A limit of httpx2 would be for each read. The answer's body may be endless, and nobody reads it.
            async with (
                asyncio.timeout(TIME_LIMIT),
                httpx2.AsyncClient(timeout=None) as client,
                client.stream("POST", self._url, content=body, headers=headers) as answer,
            ):
                pass
        except TimeoutError:
            raise NotDeliveredError(f"the receiver didn't answer within {TIME_LIMIT:.0f} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise NotDeliveredError(f"the receiver can't be reached ({type(error).__name__})") from None
        if not answer.is_success:
            raise NotDeliveredError(
                f"the receiver answered {answer.status_code}",
                is_final=answer.status_code == _GONE or None,
                retry_after=_seconds(answer.headers.get("retry-after", "")),
            )

    def _headers(self, message_id: str, body: bytes) -> dict[str, str]:
        moment = str(int(datetime.now(UTC).timestamp()))
        headers = {"webhook-id": message_id, "webhook-timestamp": moment}
        if self._key is None:
            return headers
        digest = hmac.new(self._key, f"{message_id}.{moment}.".encode() + body, sha256).digest()
        return {**headers, "webhook-signature": f"v1,{base64.b64encode(digest).decode()}"}


def _seconds(text: str) -> float | None:
    return min(max(float(text), SHORTEST_WAIT), LONGEST_WAIT) if text.isascii() and text.isdigit() else None
