"""Share each run's task with the other runs in its tree when the run starts."""

from collections.abc import Sequence

from loom.activities.memory.ports import ScopedMemory
from loom.domain.core.tasks import Action, Task
from loom.domain.memory.layers import MemoryScope
from loom.domain.memory.scopes import ScopedWrite, path_of


async def share_tasks(store: ScopedMemory, tasks: Sequence[Task]) -> None:
    """Store the tasks of started runs in the SHARED scope, once each. Raises StoreUnavailable."""
    for begun in tasks:
        words = begun.parameters.get("task")
        if begun.action is not Action.START or not isinstance(words, str):
            continue
        name, path = f"task:{begun.run_id}", path_of(begun.run_id, begun.root_run_id)
        if await store.read(name, path) is None:
            await store.write(
                ScopedWrite(id=name, content=words, scope=MemoryScope.SHARED, by=path, session_id=begun.session_id)
            )
