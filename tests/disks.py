"""A machine's clones in memory: a `Clones` whose files are lines, and whose patches are these lines."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from uuid import uuid4

from loom.activities.ports import CloneChange, CloneState
from loom.domain.core.repositories import Checkout, GitWorkspace

CHECKOUT = Checkout(url="https://git.example/app", commit="0" * 40, revision="main", folder="/clones/one")


def lines_of(patch: bytes) -> frozenset[str]:
    """Return the lines in a patch."""
    return frozenset(patch.decode().split())


@dataclass
class Disk:
    """The only clone on a machine."""

    state: CloneState | None = None
    lines: frozenset[str] = frozenset()
    built: int = 0
    """How often the clone was made."""
    largest: int = 2**20
    """The size of the largest patch that it makes."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def write(self, *lines: str) -> None:
        """Change the files, as a command does."""
        self.lines |= set(lines)

    def wipe(self) -> None:
        """Lose everything."""
        self.state, self.lines = None, frozenset()

    def folder(self, name: str) -> str:
        """See the port."""
        return CHECKOUT.folder if name else ""

    def exposes(self, path: Path) -> bool:
        """See the port."""
        return path.is_relative_to("/clones")

    @asynccontextmanager
    async def opened(self, folder: str) -> AsyncIterator["Disk"]:
        """See the port."""
        assert folder == CHECKOUT.folder
        async with self._lock:
            yield self

    async def pin(self, workspace: GitWorkspace) -> Checkout:
        """See the port."""
        raise NotImplementedError(workspace)

    async def unpack(self, content: bytes, name: str) -> Checkout:
        """See the port."""
        raise NotImplementedError(name or content)

    async def has(self, commit: str) -> bool:
        """See the port."""
        return commit == CHECKOUT.commit

    async def build(self, checkout: Checkout, patch: bytes = b"", version: int = 0) -> None:
        """See the port."""
        self.lines, self.built = lines_of(patch), self.built + 1
        self.state = CloneState(
            commit=checkout.commit,
            version=version,
            tree=self._tree,
            is_restored=version > 0,
            generation=uuid4().hex,
        )

    async def keep(self, state: CloneState) -> None:
        """See the port."""
        self.state = state

    async def change(self, checkout: Checkout, *, unless: str = "") -> CloneChange | None:
        """See the port."""
        assert checkout == CHECKOUT
        if self._tree == unless:
            return None
        patch = self._tree.encode()
        return CloneChange(patch=patch if len(patch) <= self.largest else None, files=len(self.lines), tree=self._tree)

    async def push(self, checkout: Checkout, tree: str, branch: str, *, message: str, at: datetime) -> str:
        """See the port."""
        raise NotImplementedError(branch)

    @property
    def _tree(self) -> str:
        return " ".join(sorted(self.lines)) or " "
