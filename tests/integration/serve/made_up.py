"""The page's real files with an API whose every text a test makes up. It needs no service, and reaches no network."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from playwright.async_api import Route

from loom.serve.access.roles import Operation
from loom.serve.app import PAGE, PAGE_HEADERS

ORIGIN: Final = "http://loom.test"
AT: Final = "2026-11-28T12:00:00+00:00"
FILES: Final = {f"/{file.relative_to(PAGE)}": file for file in PAGE.rglob("*.*")} | {"/": PAGE / "index.html"}
TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass
class MadeUpApi:
    """Answers the page's requests. Each text in its answers is the next one of `text`."""

    text: Callable[[], str]
    turns: int = 3
    rows: int = 3
    """Number of runs, chats and days, and of other entries of lists."""
    strange: list[str] = field(default_factory=list)
    """Requests that the page must not send."""

    async def route(self, route: Route) -> None:
        """Answer a request."""
        url = urlsplit(route.request.url)
        file = FILES.get(url.path)
        if f"{url.scheme}://{url.netloc}" != ORIGIN or route.request.method != "GET":
            self.strange.append(f"{route.request.method} {route.request.url}")
            await route.abort()
        elif file is not None:
            headers = {**PAGE_HEADERS, "Content-Type": TYPES[file.suffix]}
            await route.fulfill(body=file.read_bytes(), headers=headers)
        elif (answer := self._answer(unquote(url.path))) is None:
            self.strange.append(route.request.url)
            await route.abort()
        elif isinstance(answer, str):
            await route.fulfill(body=answer, content_type="text/event-stream")
        else:
            await route.fulfill(json=answer)

    def _answer(self, path: str) -> Any:
        fixed: dict[str, Callable[[], Any]] = {
            "/v1/me": self._me,
            "/v1/runs": lambda: self._runs("runs"),
            "/v1/chats": lambda: self._runs("chats"),
            "/v1/costs": self._costs,
            "/v1/inbox": self._waiting,
            "/v1/agents": lambda: {"agents": self._texts(), "crews": self._texts()},
        }
        if (answer := fixed.get(path)) is not None:
            return answer()
        ends: dict[str, Callable[[], Any]] = {
            "/events": self.events,
            "/approvals": self._waiting,
            "/artifacts": lambda: {
                "artifacts": [{"id": text, "bytes": 9, "name": self.text()} for text in self._texts()]
            },
            "/messages": lambda: {"messages": [{"role": "assistant", "content": text} for text in self._texts()]},
        }
        found = next((made for end, made in ends.items() if path.endswith(end)), self._status)
        return found() if path.startswith(("/v1/runs/", "/v1/chats/")) else None

    def _texts(self) -> list[str]:
        return [self.text() for _ in range(self.rows)]

    def _me(self) -> Any:
        may = [str(operation) for operation in Operation]
        return {"name": self.text(), "role": "admin", "tenant": self.text(), "may": may, "temporal_ui": None}

    def _summary(self) -> dict[str, Any]:
        return {
            **{
                name: self.text()
                for name in ("run_id", "status", "waiting_on", "agent", "tenant", "session", "user_id")
            },
            "cost": 0.5,
            "started_at": AT,
            "closed_at": None,
        }

    def _runs(self, name: str) -> Any:
        runs = [self._summary() for _ in range(self.rows)]
        return {name: runs, "tasks": {run["run_id"]: self.text() for run in runs}, "next": None}

    def _costs(self) -> Any:
        numbers = {"runs": 3, "sub_agents": 1, "unknown": 0, "running": 1}
        groups = [{"name": f"2026-11-{day + 1:02}", "cost": day * 0.1, **numbers} for day in range(min(28, self.rows))]
        return {
            "by": "day",
            "since": None,
            "total": {"name": "", "cost": 1.5, **numbers},
            "is_complete": True,
            "groups": [*groups, {"name": "", "cost": 0, **numbers}],
        }

    def _waiting(self) -> Any:
        waiting = [self._ask(kind) for kind in ("approval", "question", "stale") for _ in range(self.rows)]
        return {"waiting": waiting, "total": len(waiting)}

    def _ask(self, kind: str) -> dict[str, Any]:
        texts = ("run_id", "agent", "tenant", "tool", "call_id", "digest", "waiting_on", "made_by", "risk", "reason")
        return {
            **{name: self.text() for name in texts},
            "kind": kind,
            "since": AT,
            "is_cut": True,
            "approvals": 2,
            "turn": 1,
            "question": self.text() if kind == "question" else None,
            "arguments": {"path": self.text(), self.text(): self.text()},
            "change": f"--- {self.text()}\n+++ {self.text()}\n@@ -1 +1 @@\n-{self.text()}\n+{self.text()}",
            "for_run": [self.text()],
            "approved_by": [self.text()],
        }

    def _status(self) -> Any:
        child = {name: self.text() for name in ("agent", "description", "status")}
        return {
            **{name: self.text() for name in ("run_id", "agent", "model", "tenant", "session_id", "waiting_on")},
            "status": "running",
            "turn": 3,
            "max_turns": 9,
            "cost": 0.25,
            "question": None,
            "parked": None,
            "tool_calls": 4,
            "queued_messages": 2,
            "usage": {"total_tokens": 1200},
            "stale": True,
            "budget": {"tokens": {"spent": 1200, "limit": 5000}, "cost_usd": {"spent": 0.25, "limit": 1}},
            "context": {"tokens": 1200, "window": 8000},
            "error": {"type": self.text(), "message": self.text()},
            "forked_from": {"run_id": self.text(), "turn": 2},
            "children": [{**child, "run_id": text, "turn": 1, "cost": 0.1, "sub_agents": 1} for text in self._texts()],
        }

    def events(self) -> str:
        """A run with this many turns, as server-sent events."""
        number = count(1)
        made = [self._event("node.start", {"task": self.text(), "agent": self.text(), "workspace": self.text()})]
        for turn in range(1, self.turns + 1):
            made += self._turn(turn)
        made.append(self._event("node.complete", {}, {"status": "completed", "output": self.text(), "turns": 3}))
        numbered = ({"offset": next(number), **event} for event in made)
        frames = [f"id: {event['offset']}\ndata: {json.dumps(event)}\n\n" for event in numbered]
        return "".join(frames) + 'event: end\ndata: {"run_id": "r"}\n\n'

    def _turn(self, turn: int) -> list[dict[str, Any]]:
        call = {"turn": turn, "call_id": self.text(), "tool": self.text(), "attempt": 1}
        said, other = self.text(), {"run_id": f"r/{self.text()}"}
        asked = {**call, "arguments": {self.text(): self.text()}, "summary": self.text()}
        facts = {"turn": turn, "model": self.text(), "tokens": 10, "cost": 0.01, "ms": 900, "attempt": 1}
        return [
            self._event("node.turn", {"from": turn - 1, "to": turn, "phase": self.text()}),
            self._event("node.reasoning", {"turn": turn, "content": self.text()}),
            self._event("node.thinking", {"turn": turn, "content": said}),
            self._event("node.model_call", facts, {"content": said}),
            self._event("node.approval_requested", {**asked, "reason": self.text()}),
            self._event("node.approval_decided", {**call, "by": self.text(), "reason": self.text(), "approved": True}),
            self._event("node.tool_call", asked),
            self._event("node.tool_progress", {**call, "content": self.text()}),
            self._event("node.tool_result", call, {"content": self.text()}),
            self._event("node.message", {"by": self.text(), "text": self.text()}),
            self._event("execute", {"description": self.text(), "name": self.text()}),
            self._event("node.start", {"task": self.text()}) | other,
            self._event("node.error", {"error": {"type": self.text(), "message": self.text()}}) | other,
        ]

    def _event(self, action: str, parameters: Mapping[str, Any], result: Any = None) -> dict[str, Any]:
        return {
            "action": action,
            "run_id": "r",
            "source_agent": self.text(),
            "status": self.text(),
            "created_at": AT,
            "parameters": parameters,
            "result": result,
        }
