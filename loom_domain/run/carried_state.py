"""Read the state that an earlier release passed to a new execution with continue-as-new.

Up to version 0.3, the JSON of a `RunState` was flat and had forty fields. Since then, it has consisted of nested
values. A flat state contains `started_at`, and a current state contains `began_at`. A worker with version 0.3 therefore
can't read a current state, and never continues a run from an incomplete one. A reader ignores unknown fields. If a new
field must not be lost, the state therefore needs a new required name, such as `began_at`.
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
"""Maps each value of the current state to the flat fields that it replaces and their new names."""
_TREE: Final = {"letters": "unsent", "kept": "reserve", "wants": "requests"}
_CHILD: Final = {"untold": "spend_unknown", "told_end": "end_sent"}
_GROUPED: Final = frozenset(name for fields in _GROUPS.values() for name in fields)


def upgraded(carried: Mapping[str, Any]) -> JsonObject:
    """Return the JSON of a carried state in the current format, regardless of the release that wrote it."""
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
