"""Keep few waiting runs in a worker's cache, so that thousands of runs can wait at the same time.

A run in the cache takes memory. A run that waits for a person may do so for days, and it is restored from its history
when it goes on. Of the runs that wait, a worker therefore caches only those that began last.
"""

from collections.abc import Callable
from threading import Lock

from temporalio import workflow
from temporalio.worker import Interceptor, WorkflowInboundInterceptor, WorkflowInterceptorClassInput

from loom.workflows.event_order import EVICT
from loom.workflows.long_waits import BEGUN


class CachedWaits(Interceptor):
    """A worker's interceptor, which knows the worker's waiting runs and limits how many of them are cached."""

    def __init__(self, most: int) -> None:
        """Cache at most so many runs that began to wait, and as many that were restored while they wait. Cache at least
        one of each: a run that evicted itself while it is restored would never get past its wait.
        """
        self._most = max(1, most)
        self._begun: dict[str, None] = {}
        self._restored: dict[str, None] = {}
        self._lock = Lock()  # the runs of a worker are executed in several threads
        self._evict: Callable[[str], None] = lambda _execution: None

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002 - the SDK's name
    ) -> type[WorkflowInboundInterceptor] | None:
        """See base class."""
        input.unsafe_extern_functions[BEGUN] = self._begun_here
        input.unsafe_extern_functions[EVICT] = self.evict
        return None

    def _begun_here(self, execution: str) -> Callable[[], None]:
        return self.begun(execution, restored=workflow.unsafe.is_replaying())

    def evict_with(self, evict: Callable[[str], None]) -> None:
        """Evict runs from the worker's cache with this function, which takes the id of an execution."""
        self._evict = evict

    def evict(self, execution: str) -> None:
        """Evict a run from the worker's cache, as soon as the worker has started."""
        self._evict(execution)

    def begun(self, execution: str, *, restored: bool) -> Callable[[], None]:
        """Note that a run waits. Call the returned function when the run continues, or when it has been evicted.

        Most restored runs go on at once, because an answer has arrived. They therefore displace each other, and not the
        runs that began to wait, which would have to be restored in turn when their answers arrive.
        """
        waiting = self._restored if restored else self._begun
        with self._lock:
            waiting[execution] = None
            oldest = next(iter(waiting)) if len(waiting) > self._most else None
            if oldest is not None:
                del waiting[oldest]
        if oldest is not None:
            self._evict(oldest)
        return lambda: self._ended(waiting, execution)

    def _ended(self, waiting: dict[str, None], execution: str) -> None:
        with self._lock:
            waiting.pop(execution, None)
