"""Temporal's payload codecs: one that encrypts, and one that refuses encrypted payloads where there are no keys.

An encrypted payload has the encoding `binary/encrypted` and the key's id in its metadata. Its data is a nonce and the
ciphertext of the whole payload. A payload isn't bound to its workflow: the Web UI and other clients decode it without
knowing where it is from, and forks and sub-agents take over payloads of other workflows.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.failure.v1 import Failure
from temporalio.converter import PayloadCodec, SerializationContext, WithSerializationContext

from loom.activities.encryption import missing
from loom.domain.core.requests import IN_LINE

if TYPE_CHECKING:
    from loom.activities.adapters.encryption.data_keys import DataKeys
    from loom.activities.adapters.encryption.run_tenants import RunTenants

ENCODING: Final = b"binary/encrypted"
KEY: Final = "encryption-key-id"
_CIPHER: Final = "encryption-cipher"
_TENANT: Final = b'"tenant"'


class EncryptionCodec(PayloadCodec, WithSerializationContext):
    """Encrypts each payload with the key of the tenant that its workflow works for."""

    def __init__(self, keys: "DataKeys", runs: "RunTenants", workflow_id: str = "") -> None:
        self._keys = keys
        self._runs = runs
        self._workflow_id = workflow_id

    def with_context(self, context: SerializationContext) -> "EncryptionCodec":
        """Return a codec for one workflow's payloads."""
        return EncryptionCodec(self._keys, self._runs, getattr(context, "workflow_id", None) or "")

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """See base class. Raises StoreUnavailable and EncryptionKeyError."""
        key = await self._keys.current(self._runs.tenant_of(self._workflow_id))
        metadata = {"encoding": ENCODING, _CIPHER: b"AES-GCM", KEY: key.id.encode()}
        bound = _bound(key.id)
        return [
            Payload(metadata={**metadata, **_place_of(each)}, data=key.encrypt(each.SerializeToString(), bound))
            for each in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """See base class. Plain payloads don't change. Raises StoreUnavailable and EncryptionKeyError."""
        return [await self._decoded(payload) for payload in payloads]

    async def _decoded(self, payload: Payload) -> Payload:
        if (name := key_of(payload)) is None:
            self._look_for_tenant(payload)
            return payload
        key = await self._keys.find(name, self._place)
        decoded = Payload.FromString(key.decrypt(payload.data, _bound(name), self._place))
        if key.tenant:
            self._learn(key.tenant)
        else:
            self._look_for_tenant(decoded)
        return decoded

    @property
    def _place(self) -> str:
        return f"the history of {self._workflow_id}" if self._workflow_id else "a history"

    def _look_for_tenant(self, payload: Payload) -> None:
        """Learn the tenant from a request that a client without its key has sent."""
        if self._workflow_id and not self._runs.knows(self._workflow_id) and _TENANT in payload.data:
            self._learn(tenant_in(payload.data))

    def _learn(self, tenant: str) -> None:
        if self._workflow_id and tenant:
            self._runs.learn(self._workflow_id, tenant)


class RefuseEncrypted(PayloadCodec):
    """Encodes nothing, and refuses encrypted payloads, because this process has no keys."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """See base class."""
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """See base class. Raises EncryptionKeyError."""
        for payload in payloads:
            if (name := key_of(payload)) is not None:
                raise missing(name, "a history")
        return list(payloads)

    async def encode_wrapper(self, payloads: Payloads) -> None:
        """See base class. Nothing is copied."""

    async def decode_wrapper(self, payloads: Payloads) -> None:
        """See base class. Nothing is copied."""
        await self.decode(payloads.payloads)

    async def encode_failure(self, failure: Failure) -> None:
        """See base class."""


def key_of(payload: Payload) -> str | None:
    """Return the id of the key that has encrypted the payload, or None if it isn't encrypted."""
    if payload.metadata.get("encoding") != ENCODING or KEY not in payload.metadata:
        return None
    return payload.metadata[KEY].decode("ascii", "replace")


def tenant_in(data: bytes) -> str:
    """Return the tenant that a request, a run's state or an activity's input names, or an empty string."""
    try:
        given: Any = json.loads(data)
    except ValueError:
        return ""
    if not isinstance(given, Mapping):
        return ""
    within = [given, *(part for name in ("request", "origin") if isinstance(part := given.get(name), Mapping))]
    return next((name for each in within if isinstance(name := each.get("tenant"), str)), "")


def _place_of(payload: Payload) -> dict[str, bytes]:
    """Return the metadata that tells whether the payload stays in line."""
    return {IN_LINE: payload.metadata[IN_LINE]} if IN_LINE in payload.metadata else {}


def _bound(key: str) -> bytes:
    return f"loom:{key}:payload".encode()
