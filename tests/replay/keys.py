"""The keys of the ledger, under which an attempt at a call finds what an earlier attempt has done.

No history holds them, so that a change would pass every replay, and a call in flight would be made twice. They are
derived from the recorded requests of 0.4.0 and kept in `keys.json`. After a change on purpose, run
`python -m tests.replay.keys`, and review how the file has changed.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from temporalio.client import WorkflowHistory

from loom.activities.effects import _record_key, _tool_key
from loom.domain.machine.activity_requests import key_without_arguments, model_key
from loom.domain.run.activity_payloads import ModelRequest, ToolRequest
from loom.workflows.payload_converter import data_converter
from tests.replay.contents import HISTORIES

KEYS: Final = Path(__file__).parent / "keys.json"
_STORIES: Final = ("lost-0", "worker-lost-0", "tool-failed-0", "booked-0", "reopened-once-0", "outlived-1")


def keys() -> Mapping[str, str]:
    """Return the keys by story and activity."""
    chosen = [path for path in HISTORIES if path.stem.removeprefix("0.4.0-") in _STORIES]
    return dict(sorted(key for path in chosen for key in _of(path)))


def _of(path: Path) -> Iterator[tuple[str, str]]:
    converter = data_converter().payload_converter
    for event in WorkflowHistory.from_json(path.stem, path.read_text()).events:
        asked = event.activity_task_scheduled_event_attributes
        name = f"{path.stem} {asked.activity_id}"
        if asked.activity_type.name == "run_tool":
            (tool,) = converter.from_payloads(asked.input.payloads, [ToolRequest])
            yield name, _record_key(tool)
            yield f"{name}, for the tool", _tool_key(tool, _record_key(tool))
            yield f"{name}, before 0.3", key_without_arguments(tool)
        if asked.activity_type.name == "call_model":
            (model,) = converter.from_payloads(asked.input.payloads, [ModelRequest])
            yield name, model_key(model)


if __name__ == "__main__":
    KEYS.write_text(json.dumps(keys(), indent=1, ensure_ascii=False) + "\n")
