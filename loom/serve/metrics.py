"""Count and time requests, for Prometheus. No label names a run, a caller or a tenant."""

from collections import Counter
from collections.abc import Iterator
from time import perf_counter
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loom.serve.run_streams import RunStreams

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""The methods that are counted by name. A client may invent others, and each name takes memory."""
MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Requests:
    """The requests that have ended, by method, route and status."""

    def __init__(self) -> None:
        self.count: Counter[tuple[str, str, int]] = Counter()
        self.seconds: Counter[tuple[str, str, int]] = Counter()

    def add(self, method: str, route: str, status: int, seconds: float) -> None:
        """Add a request."""
        self.count[method, route, status] += 1
        self.seconds[method, route, status] += seconds  # type: ignore[assignment]  # a counter of seconds


class Measured:
    """Middleware that counts requests."""

    def __init__(self, app: ASGIApp, *, requests: Requests) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, and count it when it has ended."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = perf_counter(), 500

        async def send_and_look(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_look)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in METHODS else "other"
            self._requests.add(method, route, status, perf_counter() - began)


def exposition(requests: Requests, streams: RunStreams, *, audit_entries_lost: int) -> str:
    """Return all metrics as text."""
    lost = (
        "# HELP loom_serve_audit_entries_lost_total Refused requests that are missing from the audit log.",
        "# TYPE loom_serve_audit_entries_lost_total counter",
        f"loom_serve_audit_entries_lost_total {audit_entries_lost}",
    )
    return "\n".join((*_requests(requests), *_streams(streams), *lost, ""))


def _requests(requests: Requests) -> Iterator[str]:
    yield "# HELP loom_serve_requests_total HTTP requests that have ended."
    yield "# TYPE loom_serve_requests_total counter"
    for key, count in sorted(requests.count.items()):
        yield f"loom_serve_requests_total{_labels(*key)} {count}"
    yield "# HELP loom_serve_request_seconds_total Seconds that these requests took."
    yield "# TYPE loom_serve_request_seconds_total counter"
    for key, seconds in sorted(requests.seconds.items()):
        yield f"loom_serve_request_seconds_total{_labels(*key)} {seconds:.6f}"


def _streams(streams: RunStreams) -> Iterator[str]:
    gauges = (
        ("watchers", "Connections that watch a run.", streams.watchers),
        ("watched_runs", "Runs whose events are being read.", streams.watched_runs),
    )
    for name, help_, value in gauges:
        yield f"# HELP loom_serve_{name} {help_}"
        yield f"# TYPE loom_serve_{name} gauge"
        yield f"loom_serve_{name} {value}"


def _labels(method: str, route: str, status: int) -> str:
    return f'{{method="{method}",route="{route}",status="{status}"}}'
