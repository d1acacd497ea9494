"""Seal the values of stores with AES-GCM."""

import hmac
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from loom.activities.adapters.encryption.data_keys import DataKeys
from loom.activities.adapters.encryption.run_tenants import RunTenants
from loom.activities.encryption import joined, joined_text, plain, plain_text, split, split_text

_WORD_BYTES: Final = 9


class AesGcmCipher:
    """A `Cipher` that encrypts each value with the key of its tenant."""

    is_on: Final = True

    def __init__(self, keys: DataKeys, runs: RunTenants) -> None:
        self._keys = keys
        self._runs = runs

    def tenant_of(self, run_id: str) -> str:
        """See the port."""
        return self._runs.tenant_of(run_id)

    async def owner(self, stored: bytes | str) -> str:
        """See the port."""
        sealed = split_text(stored) if isinstance(stored, str) else split(stored)
        return "" if sealed is None else (await self._keys.find(sealed[0], "a store")).tenant

    def learn(self, run_id: str, tenant: str) -> None:
        """See the port."""
        self._runs.learn(run_id, tenant)

    async def seal(self, data: bytes, place: str, tenant: str) -> bytes:
        """See the port."""
        key = await self._keys.current(tenant)
        return joined(key.id, key.encrypt(data, _bound(key.id, place)))

    async def open(self, data: bytes, place: str) -> bytes:
        """See the port."""
        if (sealed := split(data)) is None:
            return plain(data)
        return await self._opened(*sealed, place)

    async def seal_text(self, text: str, place: str, tenant: str) -> str:
        """See the port."""
        key = await self._keys.current(tenant)
        return joined_text(key.id, key.encrypt(text.encode("utf-8", "surrogatepass"), _bound(key.id, place)))

    async def open_text(self, text: str, place: str) -> str:
        """See the port."""
        if (sealed := split_text(text)) is None:
            return plain_text(text)
        return (await self._opened(*sealed, place)).decode("utf-8", "surrogatepass")

    async def hidden_words(self, words: Sequence[str]) -> Sequence[str]:
        """See the port. The replacement is the beginning of a keyed hash."""
        secret = await self._keys.words()
        return [hmac.new(secret, word.encode(), sha256).digest()[:_WORD_BYTES].hex() for word in words]

    async def _opened(self, name: str, sealed: bytes, place: str) -> bytes:
        key = await self._keys.find(name, place)
        return key.decrypt(sealed, _bound(key.id, place), place)


def _bound(key: str, place: str) -> bytes:
    return f"loom:{key}:{place}".encode("utf-8", "surrogatepass")
