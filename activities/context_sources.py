"""What a model call sees besides its conversation, such as memories: any class with this method can bring it."""

from collections.abc import Sequence
from typing import Protocol

from loom_domain.assembling import Component
from loom_domain.messages import Message
from loom_domain.work import ModelRequest


class ContextSource(Protocol):
    """Brings components into the context of model calls; what it brings is recorded with the answer."""

    async def components(self, request: ModelRequest, messages: Sequence[Message]) -> Sequence[Component]:
        """Texts for this call, best placed late (`Placement.RECENCY`). Never raises; what is away says so."""
        ...
