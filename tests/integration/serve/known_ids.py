"""Hooks of Schemathesis that put the names of what exists into most of the paths that it makes up."""

import json
import os
from typing import Any, Final
from zlib import crc32

import schemathesis

KNOWN: Final[dict[str, Any]] = json.loads(os.environ["KNOWN_IDS"])
WAITS: Final = ("/events", "/result")
"""What would be sent until the run ends."""


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Change a request just before it is sent, whatever has made it up."""
    del context, kwargs
    case.path_parameters = {
        name: _known(case.path, name, given) for name, given in (case.path_parameters or {}).items()
    }
    if case.query and _is_number(case.query.get("wait")):
        case.query["wait"] = 0.1


def _known(path: str, name: str, given: Any) -> Any:
    """Return a name of what exists, nine times out of ten. The choice depends on the given value alone."""
    if name == "run_id" and path.endswith(WAITS):
        return KNOWN["ended"]
    number = crc32(str(given).encode())
    known = KNOWN.get(name)
    if known is None or number % 10 == 0 or str(given).startswith("run-"):  # it is from another answer
        return given
    return known[number // 10 % len(known)] if isinstance(known, list) else known


def _is_number(given: Any) -> bool:
    try:
        float(given)
    except (TypeError, ValueError):
        return False
    return True
