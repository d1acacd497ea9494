"""Say in Loom's words what is wrong with a value that a form refused.

The validation library names the kind of each problem and the limits that the value violates. Its own texts never reach
a user, because they speak of Python's types.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from loom.domain.core.suggestions import nearest
from loom.domain.core.tenants import TENANT_NAME, USER_ID

_KINDS: Final = {
    "missing": "is missing",
    "extra_forbidden": "is not a known field",
    "string": "must be text",
    "string_unicode": "must be text of whole characters, without unpaired surrogates",
    "int": "must be a whole number",
    "float": "must be a number",
    "decimal": "must be a number",
    "finite_number": "must be a finite number",
    "bool": "must be true or false",
    "list": "must be a list",
    "tuple": "must be a list",
    "set": "must be a list",
    "dict": "must be an object",
    "mapping": "must be an object",
    "model": "must be an object",
    "dataclass": "must be an object",
    "bytes": "must be text",
    "date": "must be a date such as 2026-01-31",
    "datetime": "must be a time such as 2026-01-31T12:00:00Z",
    "timezone": "must be a time with a time zone, such as 2026-01-31T12:00:00Z",
    "path": "must be a path",
    "url": "must be a URL",
    "json": "must be JSON",
    "none": "must be left out",
}
"""What each kind of problem is called, by the library's name for it or by the first word of this name."""
WEB_ADDRESS: Final = r"^https?://\S+$"
DIGEST: Final = r"^[0-9a-f]{64}$"
_PATTERNS: Final = {
    TENANT_NAME: "must begin with a letter or digit, followed by up to 62 letters, digits, dots, dashes or underscores",
    USER_ID: "must have 1 to 200 characters, without control characters",
    WEB_ADDRESS: "must be a URL that begins with http:// or https://, without blanks",
    DIGEST: "must have 64 digits from 0 to 9 and a to f",
}
"""What the pattern of a field allows."""
_LIMITS: Final = {
    "ge": "must be at least {}",
    "gt": "must be more than {}",
    "le": "must be at most {}",
    "lt": "must be less than {}",
    "multiple_of": "must be a multiple of {}",
}
_LENGTHS: Final = {
    "min_length": ("must not be empty", "must have at least {}"),
    "max_length": ("", "must have at most {}"),
}


def problem_of_value(problem: Mapping[str, Any]) -> str:
    """Return what is wrong with the value, such as `must be at least 1`.

    `problem` contains the library's `type`, `ctx` and `msg`, and the value as `input` if it may be looked at.
    """
    kind, limits = str(problem["type"]), problem.get("ctx") or {}
    if kind in {"value_error", "assertion_error"}:
        said = str(problem["msg"]).partition(", ")[2]
        return said[:1].lower() + said[1:]
    if "expected" in limits:
        return _one_of(re.findall(r"'([^']*)'", str(limits["expected"])), problem.get("input"))
    if kind == "string_pattern_mismatch":
        pattern = str(limits.get("pattern"))
        return _PATTERNS.get(pattern, f"must match {pattern}")
    if (limit := next((name for name in _LIMITS if name in limits), None)) is not None:
        number = limits[limit]
        is_whole = isinstance(number, float) and number.is_integer()
        return _LIMITS[limit].format(int(number) if is_whole else number)
    if (limit := next((name for name in _LENGTHS if name in limits), None)) is not None:
        empty, otherwise = _LENGTHS[limit]
        number = limits[limit]
        what = "character" if kind.startswith("string") else "item"
        return empty if empty and number == 1 else otherwise.format(f"{number} {what}{'' if number == 1 else 's'}")
    known = _KINDS.get(kind) or _KINDS.get(kind.partition("_")[0])
    said = str(problem["msg"])
    return known or (said if said[:1].islower() else "is not a valid value")


def _one_of(names: list[str], given: object) -> str:
    if not names:
        return "is not a valid value"
    if len(names) == 1:
        return f"must be {names[0]}"
    hint = nearest(given, names, "") if isinstance(given, str) else ""
    return f"must be one of {', '.join(names)}{f'; {hint}' if hint else ''}"
