"""What runs of a tree find of each other without asking: the task of each, shared from its start."""

from collections.abc import Sequence

from activities.memory.ports import ScopedMemory
from loom_domain.memory import MemoryScope
from loom_domain.memory_scopes import ScopedWrite, path_of
from loom_domain.tasks import Action, Task


async def share_tasks(store: ScopedMemory, tasks: Sequence[Task]) -> None:
    """Put the tasks of runs that have begun into SHARED, once each; raises StoreUnavailable."""
    for begun in tasks:
        words = begun.parameters.get("task")
        if begun.action is not Action.START or not isinstance(words, str):
            continue
        name, path = f"task:{begun.run_id}", path_of(begun.run_id, begun.root_run_id)
        if await store.read(name, path) is None:
            await store.write(
                ScopedWrite(id=name, content=words, scope=MemoryScope.SHARED, by=path, session_id=begun.session_id)
            )
