"""Which tenant a run works for, as far as this process has seen it.

A worker sees the input of each run and each activity that it serves, and the id of the key that has encrypted it. A
sub-agent's id begins with its parent's id, and it works for the same tenant.
"""

from collections import OrderedDict
from typing import Final

_MOST: Final = 100_000


class RunTenants:
    """The tenants of the runs that were seen last."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, str] = OrderedDict()
        self._above: OrderedDict[str, str] = OrderedDict()

    def knows(self, run_id: str) -> bool:
        """Whether this process has seen the run itself."""
        return run_id in self._seen

    def learn(self, run_id: str, tenant: str) -> None:
        """Remember a run's tenant. A sender may not know the tenant of a run, so an empty name replaces no other."""
        if tenant or run_id not in self._seen:
            _put(self._seen, run_id, tenant)
            if "/" in run_id:
                _put(self._above, run_id.rpartition("/")[0], tenant)
        else:
            self._seen.move_to_end(run_id)

    def tenant_of(self, run_id: str) -> str:
        """Return the run's tenant, or else that of the nearest run above it, or of a run below it, or an empty name."""
        name = run_id
        while name:
            if name in self._seen:
                return self._seen[name]
            name = name.rpartition("/")[0]
        return self._above.get(run_id, "")


def _put(known: OrderedDict[str, str], name: str, tenant: str) -> None:
    known[name] = tenant
    known.move_to_end(name)
    if len(known) > _MOST:
        known.popitem(last=False)
