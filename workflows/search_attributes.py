"""A run's search attributes: what lists of runs are filtered by. Each change costs a history event, so they are few."""

from collections.abc import Mapping, Sequence
from typing import Any

from temporalio.common import SearchAttributeKey, SearchAttributeUpdate

from loom.domain.core.requests import RunStatus
from loom.domain.core.search_attributes import SEARCH_ATTRIBUTES
from loom.domain.run.state import RunState, cost_of, status_of
from loom.domain.tree.tree import root_of

_WAITING = {
    RunStatus.WAITING_FOR_APPROVAL: "approval",
    RunStatus.WAITING_FOR_INPUT: "input",
    RunStatus.PAUSED: "resume",
}


def attributes_of(state: RunState) -> dict[str, str | float]:
    """The attributes that the server knows, changed only when the run's status changes."""
    status = status_of(state)
    wanted: dict[str, str | float] = {
        "LoomAgent": state.request.agent,
        "LoomSession": state.request.session_id or state.run_id,
        "LoomStatus": status.value,
        "LoomModel": state.spec.model if state.spec else "",
        "LoomWaitingOn": _WAITING.get(status, "none"),
        "LoomRootRun": root_of(state.tree, state.run_id),
    }
    cost = cost_of(state)
    if state.outcome is not None and cost is not None:
        wanted["LoomCostUsd"] = cost
    return {name: value for name, value in wanted.items() if name in state.environment.search_attributes}


def attribute_updates(changed: Mapping[str, str | float]) -> Sequence[SearchAttributeUpdate[Any]]:
    """The same as Temporal's upsert takes it."""
    return [_key(name).value_set(value) for name, value in changed.items()]


def _key(name: str) -> SearchAttributeKey[Any]:
    if SEARCH_ATTRIBUTES[name] == "Double":
        return SearchAttributeKey.for_float(name)
    return SearchAttributeKey.for_keyword(name)
