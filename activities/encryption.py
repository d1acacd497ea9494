"""Encrypt what Loom stores outside Temporal's history, and keep encrypted and plain data apart.

    sealed bytes    MAGIC, the length of the key's id, the id, a nonce of 12 bytes, and the ciphertext with its tag
    sealed text     `loom-sealed:1:`, the key's id, `:`, and the nonce and the ciphertext in base64

Each store seals a value for its place, such as an artifact of a run. A value that was moved to another place can't be
opened. A value that was stored before encryption was turned on is plain, and is read as it is. Without keys, nothing is
sealed, and a sealed value raises EncryptionKeyError.
"""

import base64
import re
from collections.abc import Sequence
from typing import Final, Protocol

from loom.domain.core.errors import EncryptionKeyError

MAGIC: Final = b"\x93LOOM\x01"
"""The first bytes of sealed data. Neither UTF-8 nor zlib data begins with them."""
TEXT: Final = "loom-sealed:1:"
"""The beginning of a sealed text."""
KEY_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
NONCE: Final = 12
_ESCAPED: Final = MAGIC + b"\x00"
_ESCAPED_TEXT: Final = "loom-plain:1:"


class Cipher(Protocol):
    """Seals and opens values of stores, and hides the words of a search index."""

    @property
    def is_on(self) -> bool:
        """Whether values are encrypted."""
        ...

    def tenant_of(self, run_id: str) -> str:
        """Return the tenant that the run works for, or an empty string if it has none or this process doesn't know."""
        ...

    async def owner(self, stored: bytes | str) -> str:
        """Return the tenant whose key has sealed the value, or an empty string. Raises StoreUnavailable and
        EncryptionKeyError.
        """
        ...

    def learn(self, run_id: str, tenant: str) -> None:
        """Remember which tenant a run works for."""
        ...

    async def seal(self, data: bytes, place: str, tenant: str) -> bytes:
        """Encrypt the data for a place, with the tenant's key. Raises StoreUnavailable and EncryptionKeyError."""
        ...

    async def open(self, data: bytes, place: str) -> bytes:
        """Decrypt data of a place, or return plain data. Raises StoreUnavailable and EncryptionKeyError."""
        ...

    async def seal_text(self, text: str, place: str, tenant: str) -> str:
        """Encrypt a text for a column or a field that stores text. Raises StoreUnavailable and EncryptionKeyError."""
        ...

    async def open_text(self, text: str, place: str) -> str:
        """Decrypt a text, or return a plain text. Raises StoreUnavailable and EncryptionKeyError."""
        ...

    async def hidden_words(self, words: Sequence[str]) -> Sequence[str]:
        """Replace each word with one that reveals nothing about it. Equal words have equal replacements."""
        ...


class NoEncryption:
    """A `Cipher` without keys: it stores values as they are, and refuses sealed ones."""

    is_on: Final = False

    def tenant_of(self, run_id: str) -> str:
        """See the port."""
        del run_id
        return ""

    async def owner(self, stored: bytes | str) -> str:
        """See the port."""
        del stored
        return ""

    def learn(self, run_id: str, tenant: str) -> None:
        """See the port."""

    async def seal(self, data: bytes, place: str, tenant: str) -> bytes:
        """See the port. Plain data that looks sealed is marked as plain."""
        del place, tenant
        return _ESCAPED + data if data.startswith(MAGIC) else data

    async def open(self, data: bytes, place: str) -> bytes:
        """See the port."""
        if (sealed := split(data)) is not None:
            raise missing(sealed[0], place)
        return plain(data)

    async def seal_text(self, text: str, place: str, tenant: str) -> str:
        """See the port. A plain text that looks sealed is marked as plain."""
        del place, tenant
        return _ESCAPED_TEXT + text if text.startswith((TEXT, _ESCAPED_TEXT)) else text

    async def open_text(self, text: str, place: str) -> str:
        """See the port."""
        if (sealed := split_text(text)) is not None:
            raise missing(sealed[0], place)
        return text.removeprefix(_ESCAPED_TEXT)

    async def hidden_words(self, words: Sequence[str]) -> Sequence[str]:
        """See the port."""
        return words


PLAIN: Final = NoEncryption()


def missing(key: str, where: str, **context: str) -> EncryptionKeyError:
    """Return the error for data whose key this process doesn't have."""
    return EncryptionKeyError(
        f"data in {where} is encrypted with the key {key:.40}, which this process doesn't have: add the key to the file"
        " in LOOM_ENCRYPTION_KEYS (`loom keys list` shows its keys)",
        key=key,
        **context,
    )


def joined(key: str, nonce_and_ciphertext: bytes) -> bytes:
    """Return sealed bytes."""
    return MAGIC + bytes((len(key),)) + key.encode() + nonce_and_ciphertext


def split(data: bytes) -> tuple[str, bytes] | None:
    """Return the key's id, and the nonce and the ciphertext. Return None if the data is plain."""
    start = len(MAGIC) + 1
    if not data.startswith(MAGIC) or data.startswith(_ESCAPED) or len(data) < start:
        return None
    end = start + data[len(MAGIC)]
    return data[start:end].decode("ascii", "replace"), data[end:]


def key_prefix(sealed: bytes) -> bytes:
    """Return the beginning of sealed data, up to the end of its key's id."""
    return sealed[: len(MAGIC) + 1 + sealed[len(MAGIC)]]


def plain(data: bytes) -> bytes:
    """Return plain data as it was before it was stored."""
    return data.removeprefix(_ESCAPED)


def joined_text(key: str, nonce_and_ciphertext: bytes) -> str:
    """Return a sealed text."""
    return f"{TEXT}{key}:{base64.b64encode(nonce_and_ciphertext).decode()}"


def split_text(text: str) -> tuple[str, bytes] | None:
    """Return the key's id, and the nonce and the ciphertext. Return None if the text is plain."""
    if not text.startswith(TEXT):
        return None
    key, _, encoded = text.removeprefix(TEXT).partition(":")
    try:
        sealed = base64.b64decode(encoded, validate=True)
    except ValueError:
        return None
    return (key, sealed) if KEY_ID.fullmatch(key) else None


def plain_text(text: str) -> str:
    """Return a plain text as it was before it was stored."""
    return text.removeprefix(_ESCAPED_TEXT)
