"""Tell the worker that a run waits for a long time, so that it may leave the worker's cache (see `cached_waits`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from temporalio import workflow

BEGUN: Final = "loom_wait_begun"
"""The name of the worker's function that notes a wait."""


@contextmanager
def waiting() -> Iterator[None]:
    """Mark this run as waiting. A worker without the interceptor, such as a replayer, doesn't limit waiting runs."""
    begun = workflow.extern_functions().get(BEGUN)
    if begun is None:
        yield
        return
    ended = begun(workflow.info().run_id)
    try:
        yield
    finally:
        ended()
