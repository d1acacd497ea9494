"""The plan for a supervisor: the services, the worker and the HTTP service to run. A command line can contain it."""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from loom.stack.ports import USUAL

LOOM_WORKER: Final = (sys.executable, "-P", "-m", "loom._worker")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The home of a stack, and the worker to run for it, if any."""

    home: Path
    worker: tuple[str, ...] | None = LOOM_WORKER  # None means that no worker runs
    task_queue: str = "loom"
    namespace: str = "default"
    metrics_port: int | None = USUAL["metrics"]  # if the usual port is taken, another one is used
    serve_port: int | None = None  # where the HTTP service listens; None means that it doesn't run
    app: str | None = None  # the app to load; None means the app that the running worker has loaded
    workspaces: tuple[str, ...] = ()  # LOOM_WORKSPACES of the worker; empty means those of the running worker
    private: bool = False  # whether only this user's processes reach Temporal
    codec_endpoint: str | None = None  # the codec server that the Web UI asks
    redis_server: Path | None = None  # None means the packaged server, or else the one on PATH
    spare_worker: bool = True  # whether a spare of Loom's worker waits to replace it

    @property
    def has_spare(self) -> bool:
        """Whether a spare is loaded. Only Loom's own worker knows how to be one."""
        return self.spare_worker and self.worker == LOOM_WORKER

    def without_worker(self) -> Self:
        """Return the plan without the worker, and without the HTTP service beside it."""
        return replace(self, worker=None, serve_port=None)

    def to_json(self) -> str:
        """Return the plan as JSON for the daemon's command line."""
        redis = str(self.redis_server) if self.redis_server else None
        named = (str(self.home), self.worker, self.task_queue, self.namespace, self.metrics_port, self.app, redis)
        return json.dumps(
            (*named, self.workspaces, self.private, self.codec_endpoint, self.serve_port, self.spare_worker)
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the plan that the JSON text contains."""
        home, worker, queue, namespace, metrics, app, redis, workspaces, private, codec, serve, spare = json.loads(text)
        return cls(
            home=Path(home),
            worker=tuple(worker) if worker else None,
            task_queue=queue,
            namespace=namespace,
            metrics_port=metrics,
            app=app,
            redis_server=Path(redis) if redis else None,
            workspaces=tuple(workspaces),
            private=private,
            codec_endpoint=codec,
            serve_port=serve,
            spare_worker=spare,
        )
