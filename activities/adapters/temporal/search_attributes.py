"""Register Loom's search attributes where they are missing, before anything polls.

A run that upserts an unregistered one retries its task for ever; so the worker asks which names exist and runs use only
those. A namespace whose owner does not let us register is served all the same, with fewer ways to list.
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
_LOOKS = 30  # a tenth of a second apart; the server's own cache takes about one second


async def register_missing(client: Client) -> frozenset[str]:
    """Register what is missing and return Loom's names that exist afterwards."""
    present = await _present(client)
    missing = {name: _TYPES[kind] for name, kind in SEARCH_ATTRIBUTES.items() if name not in present}
    if not missing:
        return present
    try:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing)
        )
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:  # another worker was faster
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
    """Loom's names that exist with the type Loom writes; none when we may not even look."""
    try:
        found: ListSearchAttributesResponse = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace)
        )
    except RPCError as error:
        _log.warning("search attributes cannot be listed: %s", error.message)
        return frozenset()
    known = {**found.system_attributes, **found.custom_attributes}
    return frozenset(name for name, kind in SEARCH_ATTRIBUTES.items() if known.get(name) == _TYPES[kind])
