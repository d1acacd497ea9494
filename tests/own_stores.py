"""Stores as a user writes them: on SQLite, without a class of Loom."""

import math
import pickle
import re
import sqlite3
from types import SimpleNamespace as Values
from typing import Any


def cosine(one: Any, other: Any) -> float:
    size = math.sqrt(sum(x * x for x in one)) * math.sqrt(sum(x * x for x in other))
    return sum(x * y for x, y in zip(one, other, strict=True)) / size if size else 0.0


def key(base: str, tenant: str) -> str:
    return f"{tenant}/{base}"


class VectorTable:
    """A knowledge store that searches by vectors only."""

    def __init__(self, path: str, embedder: Any) -> None:
        self.db = sqlite3.connect(path)
        self.embedder = embedder
        self.db.executescript(
            "CREATE TABLE IF NOT EXISTS base (key TEXT PRIMARY KEY, folder TEXT);"
            "CREATE TABLE IF NOT EXISTS chunk (id INTEGER PRIMARY KEY, base TEXT, path TEXT, digest TEXT, chunk BLOB,"
            " text TEXT, vector BLOB)"
        )

    async def digests(self, base: str, *, tenant: str = "") -> Any:
        return dict(self.db.execute("SELECT path, digest FROM chunk WHERE base = ?", (key(base, tenant),)))

    async def begin(self, base: str, folder: str, *, tenant: str = "") -> None:
        self.db.execute("INSERT OR REPLACE INTO base VALUES (?, ?)", (key(base, tenant), folder))

    async def save(self, base: str, document: Any, *, tenant: str = "") -> None:
        await self.remove(base, [document.path], tenant=tenant)
        rows = [(key(base, tenant), document.path, document.digest, pickle.dumps(c), c.text) for c in document.chunks]
        self.db.executemany("INSERT INTO chunk (base, path, digest, chunk, text) VALUES (?, ?, ?, ?, ?)", rows)
        self.db.commit()

    async def remove(self, base: str, paths: Any, *, tenant: str = "") -> None:
        rows = [(key(base, tenant), path) for path in paths]
        self.db.executemany("DELETE FROM chunk WHERE base = ? AND path = ?", rows)

    async def drop(self, base: str, *, tenant: str = "") -> bool:
        self.db.execute("DELETE FROM chunk WHERE base = ?", (key(base, tenant),))
        return self.db.execute("DELETE FROM base WHERE key = ?", (key(base, tenant),)).rowcount == 1

    async def bases(self, *, tenant: str | None = None) -> Any:
        found = [
            self._base(*row)
            for row in self.db.execute(
                "SELECT key, folder, count(id), count(vector) FROM base LEFT JOIN chunk ON base = key GROUP BY 1"
            )
        ]
        own = {base.name for base in found if base.tenant and base.tenant == tenant}
        return [
            base
            for base in found
            if tenant is None or base.tenant == tenant or (base.tenant == "" and base.name not in own)
        ]

    def _base(self, key: str, folder: str, chunks: int, vectors: int) -> Any:
        tenant, name = key.split("/")
        counts = {"documents": chunks, "chunks": chunks, "vectors": {"any": vectors}}
        return Values(name=name, tenant=tenant, folder=folder, updated_at=None, **counts)

    async def missing(self, names: Any, *, tenant: str | None = None) -> Any:
        return [name for name in names if name not in {base.name for base in await self.bases(tenant=tenant)}]

    async def unembedded(self, base: str, limit: int, *, tenant: str = "") -> Any:
        sql = "SELECT id, text FROM chunk WHERE base = ? AND vector IS NULL LIMIT ?"
        return [Values(id=name, told=text) for name, text in self.db.execute(sql, (key(base, tenant), limit))]

    async def set_vectors(self, model: str, vectors: Any) -> None:
        rows = [(pickle.dumps(vector), name) for name, vector in vectors.items()]
        self.db.executemany("UPDATE chunk SET vector = ? WHERE id = ?", rows)
        self.db.commit()

    async def drop_vectors(self, base: str, *, tenant: str = "") -> None:
        self.db.execute("UPDATE chunk SET vector = NULL WHERE base = ?", (key(base, tenant),))

    async def search(self, query: Any) -> Any:
        (asked,) = await self.embedder.embed([query.text], query=True)
        there = {key(base.name, base.tenant): base for base in await self.bases(tenant=query.tenant)}
        hits = [
            self._found(there[base], path, chunk, near)
            for base, path, chunk, vector in self.db.execute(
                "SELECT base, path, chunk, vector FROM chunk WHERE vector IS NOT NULL"
            )
            if base in there and (not query.bases or there[base].name in query.bases)
            if (near := cosine(asked, pickle.loads(vector))) > 0.2
        ]
        return sorted(hits, key=lambda hit: -hit.score)[: query.limit]

    def _found(self, base: Any, path: str, chunk: bytes, near: float) -> Any:
        scores = {"score": near, "similarity": near, "covered": 0.0}
        return Values(base=base.name, tenant=base.tenant, path=path, chunk=pickle.loads(chunk), **scores)


class TaskTable:
    """A memory store that keeps tasks whole and finds them by words."""

    def __init__(self, path: str) -> None:
        self.db = sqlite3.connect(path)
        self.db.execute(
            "CREATE TABLE IF NOT EXISTS task (id INTEGER PRIMARY KEY, name TEXT UNIQUE, session TEXT, tenant TEXT,"
            " user TEXT, task BLOB)"
        )

    async def remember(self, tasks: Any) -> int:
        rows = [
            (
                task.task_id,
                task.session_id or task.run_id,
                task.metadata.get("tenant", ""),
                task.metadata.get("user_id", ""),
                pickle.dumps(task),
            )
            for task in tasks
        ]
        sql = "INSERT OR IGNORE INTO task (name, session, tenant, user, task) VALUES (?, ?, ?, ?, ?)"
        new = self.db.executemany(sql, rows).rowcount
        self.db.commit()
        return new

    async def missing(self, tasks: Any) -> Any:
        known = {name for (name,) in self.db.execute("SELECT name FROM task")}
        return tuple(task for task in tasks if task.task_id not in known)

    def _found(self, view: Any, keep: Any = lambda hit: True) -> Any:
        sql = "SELECT id, task FROM task WHERE session = ? AND tenant = ? AND user = ? ORDER BY id DESC"
        rows = self.db.execute(sql, (view.session_id, view.owner.tenant, view.owner.user_id))
        hits = [self._hit(number, pickle.loads(task)) for number, task in rows]
        allowed = [
            hit
            for hit in hits
            if hit.memory.run_id != view.without_run
            and (not view.actions or hit.memory.action in view.actions)
            and keep(hit)
        ]
        return tuple(allowed[: view.limit])

    def _hit(self, number: int, task: Any) -> Any:
        words = {**task.parameters, **(task.result or {})}
        content = next((words[key] for key in ("output", "text", "task") if isinstance(words.get(key), str)), "")
        memory = Values(
            id=number,
            layer="L1",
            content=content,
            session_id=task.session_id,
            run_id=task.run_id,
            task_id=task.task_id,
            turn=0,
            ordinal=number,
            node=task.source_agent,
            action=task.action,
            importance=0.5,
            created_at=task.created_at,
            task=task,
            scope="local",
        )
        return Values(memory=memory, layer="L1", score=1.0, similarity=None)

    async def recall(self, query: Any) -> Any:
        words = set(re.findall(r"\w+", query.text.lower()))
        return self._found(query.view, lambda hit: words & set(re.findall(r"\w+", hit.memory.content.lower())))

    async def recent(self, view: Any) -> Any:
        return self._found(view)

    async def important(self, view: Any) -> Any:
        return self._found(view)

    async def by_action(self, view: Any, action: str) -> Any:
        return self._found(view, lambda hit: hit.memory.action == action)

    async def by_node(self, view: Any, node: str) -> Any:
        return self._found(view, lambda hit: hit.memory.node == node)

    async def by_id(self, memory_id: int, session_id: Any = None) -> Any:
        return None

    async def export(self, session_id: str) -> Any:
        sql = "SELECT id, task FROM task WHERE session = ? ORDER BY id"
        for number, task in self.db.execute(sql, (session_id,)).fetchall():
            yield self._hit(number, pickle.loads(task)).memory

    async def forget(self, session_id: str) -> Any:
        gone = self.db.execute("DELETE FROM task WHERE session = ?", (session_id,)).rowcount
        return Values(memories=gone)

    async def stats(self, session_id: Any = None) -> Any:
        return Values(tasks=self.db.execute("SELECT count(*) FROM task").fetchone()[0])
