"""Convert a task to the rows that are stored for it."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from loom.activities.adapters.postgres.database import storable
from loom.activities.adapters.postgres.memory_rows import (
    MEMORY,
    TOLD_FORM,
    digest,
    global_place,
    hidden_fingerprint,
    hidden_tsvector,
    key_text,
    owned,
    owner_digest,
    write_task,
)
from loom.activities.encryption import Cipher
from loom.domain.core.tasks import Task
from loom.domain.memory.content import content_of, is_trivial
from loom.domain.memory.layers import Layer, MemoryScope, MemorySettings
from loom.domain.memory.people import task_owner

INSERT_ROWS: Final = """
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%s::json) AS given (
        id bytea, whole_task_id text, run_id text, session_id text, tenant text, user_id text, turn int, ordinal int,
        action text, created_at timestamptz, owner bytea, place text, root_run_id text, task_id text,
        parent_task_id text, node text, status text, layer text, scope text, importance real, content text,
        fingerprint bytea, task text, lexemes tsvector, length int, telling boolean, told_form smallint
    )
),
recorded AS (
    INSERT INTO loom_memory_tasks (
        id, task_id, run_id, session_id, tenant, user_id, turn, ordinal, action, created_at, owner
    )
    SELECT id, whole_task_id, run_id, session_id, tenant, user_id, turn, ordinal, action, created_at, owner FROM given
)
INSERT INTO loom_memory (
    place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status, layer, scope,
    importance, content, fingerprint, task, lexemes, length, telling, told_form, created_at, tenant, user_id
)
SELECT place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status, layer,
    scope, importance, content, fingerprint, task::json, lexemes, length, telling, told_form, created_at, tenant,
    user_id
FROM given
"""
"""Stores a batch of rows. The whole batch is one parameter, so Postgres plans the statement once. In this parameter, a
task is text, because Postgres can't decode every escape that a task may contain.
"""
_TURN: Final = re.compile(r"/t(\d{1,9})(?:-|/|\.)")


def session_of(task: Task) -> str:
    """Return the session that a task's memories belong to. A run without a session is treated as a session of
    its own.
    """
    return task.session_id or task.run_id


def owner_of(task: Task) -> bytes:
    """Return the digest of the person whose run left the task, or no bytes if the run names no user."""
    owner = task_owner(task)
    return owner_digest(owner) if owner.user_id else b""


def tenant_of(cipher: Cipher, task: Task) -> str:
    """Return the tenant that the task's run works for. Tasks of earlier releases don't name it."""
    return task_owner(task).tenant or cipher.tenant_of(task.run_id)


async def memory_row(
    cipher: Cipher, task: Task, ordinal: int, importance: float, settings: MemorySettings
) -> dict[str, Any]:
    """Return one row with the columns of the task's memory and of its permanent record. The memory is in L2 if the task
    is important, and otherwise in L1.
    """
    content, tenant = content_of(task), tenant_of(cipher, task)
    lexemes, length = await hidden_tsvector(cipher, content)
    is_global, owner = task.metadata.get("scope") == MemoryScope.GLOBAL, task_owner(task)
    return {
        "id": digest(task.task_id),
        "whole_task_id": storable(task.task_id),
        "task_id": key_text(task.task_id),
        "run_id": key_text(task.run_id),
        "session_id": key_text(session_of(task)),
        "tenant": storable(owner.tenant),
        "user_id": storable(owner.user_id),
        "turn": turn_of(task),
        "ordinal": ordinal,
        "action": key_text(str(task.action)),
        "created_at": task.created_at,
        "owner": owner_of(task),
        "place": global_place(owner) if is_global else owned(session_of(task), owner),
        "scope": MemoryScope.GLOBAL if is_global else MemoryScope.LOCAL,
        "root_run_id": key_text(task.root_run_id or task.run_id),
        "parent_task_id": None if task.parent_task_id is None else key_text(task.parent_task_id),
        "node": key_text(task.source_agent),
        "status": storable(task.status),
        "layer": Layer.L2 if importance > settings.important_over else Layer.L1,
        "importance": importance,
        "content": await cipher.seal_text(content, MEMORY, tenant),
        "fingerprint": await hidden_fingerprint(cipher, content),
        "task": await write_task(cipher, task, tenant),
        "lexemes": lexemes,
        "length": length,
        "telling": not is_trivial(content, settings.trivial_below),
        "told_form": TOLD_FORM,
    }


def written_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as JSON, the parameter of `INSERT_ROWS`."""
    return json.dumps(rows, default=_column)


def turn_of(task: Task) -> int:
    """Return the turn that the task or its id names. Return 0 if neither of them names a turn."""
    said = task.parameters.get("turn")
    if isinstance(said, int) and not isinstance(said, bool) and 0 <= said < 2**31:
        return said
    found = _TURN.search(task.task_id.removeprefix(task.run_id))
    return int(found[1]) if found else 0


def _column(value: bytes | datetime) -> str:
    return f"\\x{value.hex()}" if isinstance(value, bytes) else value.isoformat()
