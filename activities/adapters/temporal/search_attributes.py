"""Register Loom's missing search attributes before the worker starts polling.

If a run upserts an unregistered attribute, its workflow task is retried indefinitely. The worker therefore checks which
attributes exist, and its runs use only these attributes. Loom also works in a namespace that doesn't allow
registration, but with fewer list filters.
"""

import asyncio
import logging

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
    ListSearchAttributesResponse,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from loom.domain.core.search_attributes import SEARCH_ATTRIBUTES

_log = logging.getLogger("loom.deploy")
_TYPES = {
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "Double": IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE,
}
_LOOKS = 30  # attempts are a tenth of a second apart; the server's cache is updated after about one second


async def register_missing(client: Client) -> frozenset[str]:
    """Register missing attributes, and return all of Loom's attributes that exist afterward."""
    present = await _present(client)
    missing = {name: _TYPES[kind] for name, kind in SEARCH_ATTRIBUTES.items() if name not in present}
    if not missing:
        return present
    try:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing)
        )
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:  # another worker has registered them first
            _log.warning("search attributes %s cannot be registered: %s", sorted(missing), error.message)
            return present
    return await _until_visible(client)


async def _until_visible(client: Client) -> frozenset[str]:
    present: frozenset[str] = frozenset()
    for _ in range(_LOOKS):
        present = await _present(client)
        if present == frozenset(SEARCH_ATTRIBUTES):
            break
        await asyncio.sleep(0.1)
    return present


async def _present(client: Client) -> frozenset[str]:
    """Return the Loom attributes that exist with the expected type. The set is empty if this process isn't permitted to
    list attributes.
    """
    try:
        found: ListSearchAttributesResponse = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace)
        )
    except RPCError as error:
        _log.warning("search attributes cannot be listed: %s", error.message)
        return frozenset()
    known = {**found.system_attributes, **found.custom_attributes}
    return frozenset(name for name, kind in SEARCH_ATTRIBUTES.items() if known.get(name) == _TYPES[kind])
