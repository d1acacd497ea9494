"""The types of the fixtures, for tests with annotations."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

from temporalio.testing import WorkflowEnvironment

from loom.testing.harness import Harness
from loom.testing.model_server import ModelServer
from loom.testing.worker_processes import Workers

LoomWorker: TypeAlias = Callable[..., AbstractAsyncContextManager[tuple[Harness, ModelServer]]]
"""`loom_worker`."""
LoomProcesses: TypeAlias = Callable[..., AbstractAsyncContextManager[tuple[Harness, ModelServer, Workers]]]
"""`loom_processes`."""
LoomTimeSkipping: TypeAlias = Callable[
    ..., AbstractAsyncContextManager[tuple[Harness, ModelServer, WorkflowEnvironment]]
]
"""`loom_time_skipping`."""
