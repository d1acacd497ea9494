"""Whether a value has the shape that a TypedDict says."""

from types import UnionType
from typing import Any, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict


def misfits(value: Any, kind: Any, at: str = "") -> list[str]:
    """The places where `value` differs from the type."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is NotRequired:
        return misfits(value, inner[0], at)
    if origin in (Union, UnionType):
        found = [misfits(value, each, at) for each in inner]
        return min(found, key=len)
    if origin is list:
        lists = isinstance(value, list)
        return (
            [wrong for each in value for wrong in misfits(each, inner[0], f"{at}[]")] if lists else [f"{at}: {value!r}"]
        )
    if is_typeddict(kind):
        if not isinstance(value, dict):
            return [f"{at}: {value!r}"]
        hints = get_type_hints(kind, include_extras=True)
        strange = [f"{at}.{name}: unknown" for name in value if name not in hints]
        absent = [f"{at}.{name}: absent" for name in kind.__required_keys__ if name not in value]
        known = [(name, hint) for name, hint in hints.items() if name in value]
        return [
            *strange,
            *absent,
            *(wrong for name, hint in known for wrong in misfits(value[name], hint, f"{at}.{name}")),
        ]
    fits = isinstance(value, (int, float) if kind is float else (origin or kind))
    return [] if fits else [f"{at}: {value!r}"]
