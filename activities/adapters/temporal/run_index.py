"""Find out which workflows a server still has."""

from typing import Any

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from loom.domain.core.stored_data import StoredTree, tree_of


class TemporalRunIndex:
    """An implementation of `RunIndex` that uses a Temporal client.

    Its methods raise RPCError if the server can't answer, so that a run never counts as gone because of an outage.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def server(self) -> str:
        """See the port."""
        request = DescribeNamespaceRequest(namespace=self._client.namespace)
        described = await self._client.workflow_service.describe_namespace(request)
        return described.namespace_info.id

    async def find(self, run_id: str) -> str | None:
        """See the port."""
        description = await self._described(run_id)
        if description is None:
            return None
        parent = description.parent_id or ""
        return "" if tree_of(parent) == tree_of(run_id) else parent

    async def has_any(self, tree: StoredTree) -> bool:
        """See the port."""
        root = tree.root.replace("'", "''")
        listed = self._client.list_workflows(f"WorkflowId = '{root}' OR WorkflowId STARTS_WITH '{root}/d'", limit=1)
        try:
            async for _ in listed:
                return True
        except RPCError as error:
            if error.status is not RPCStatusCode.INVALID_ARGUMENT:
                raise
            return True  # an id that can't be part of a filter: nothing is known about the tree
        # The list may lag behind, most of all after deletions. It therefore doesn't decide alone.
        for run_id in dict.fromkeys((tree.root, *tree.runs, *tree.parents)):
            if await self._described(run_id) is not None:
                return True
        return False

    async def _described(self, run_id: str) -> Any:
        try:
            return await self._client.get_workflow_handle(run_id).describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND or str(error).lower().startswith("namespace"):
                raise
            return None
