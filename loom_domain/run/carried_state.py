"""Reading the state that an earlier release carried on into a new execution.

Up to 0.3 the JSON of a `RunState` was flat: forty fields side by side. Since then it is made of values of their own.
A flat state says `started_at`, today's says `began_at`; no release reads the form of a later one, so a worker of an
older release never continues a run from half of its state.
"""

from collections.abc import Mapping
from typing import Any, Final

from loom.domain.core.messages import JsonObject

_GROUPS: Final[Mapping[str, Mapping[str, str]]] = {
    "environment": {"search_attributes": "search_attributes", "ledger": "ledger"},
    "conversation": {name: name for name in ("transcript", "known", "produced", "spec_digest", "send_spec")},
    "calls": {"calls": "open", "grants": "grants", "rules_changed": "rules_changed"},
    "work": {name: name for name in ("todos", "artifacts", "repetition")},
    "answer": {
        "answer": "held",
        **{name: name for name in ("partial", "nudges", "repairs", "draft", "reflection", "wrap_up")},
    },
    "spending": {name: name for name in ("usage", "cost_micros", "tool_calls", "warned")},
    "notices": {"notices": "pending", "noticed": "numbered"},
}
"""Each value of today's state, with the flat fields that it is made of and their names in it."""
_TREE: Final = {"letters": "unsent", "kept": "reserve", "wants": "requests"}
_CHILD: Final = {"untold": "spend_unknown", "told_end": "end_sent"}
_GROUPED: Final = frozenset(name for fields in _GROUPS.values() for name in fields)


def upgraded(carried: Mapping[str, Any]) -> JsonObject:
    """The JSON of a carried state in today's form, whichever release wrote it."""
    if "started_at" not in carried:
        return dict(carried)
    state = {name: value for name, value in carried.items() if name not in _GROUPED and name != "started_at"}
    state["began_at"] = carried["started_at"]
    for group, fields in _GROUPS.items():
        state[group] = {new: carried[old] for old, new in fields.items() if old in carried}
    if "tree" in carried:
        state["tree"] = _tree(carried["tree"])
    return state


def _tree(flat: Mapping[str, Any]) -> JsonObject:
    tree = _renamed(flat, _TREE)
    return {**tree, "children": [_renamed(child, _CHILD) for child in tree.get("children", ())]}


def _renamed(fields: Mapping[str, Any], names: Mapping[str, str]) -> JsonObject:
    return {names.get(name, name): value for name, value in fields.items()}
