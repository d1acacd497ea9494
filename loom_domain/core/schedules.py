"""Schedules: the ids of the runs that they start, and cron expressions, checked before the server sees them."""

import re
from typing import Final

from loom.domain.core.errors import BadRequest

FIELDS: Final = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")),
    ("day of the week", 0, 7, ("sun", "mon", "tue", "wed", "thu", "fri", "sat")),
)
"""Name, smallest and largest value, and names of the values, counted from the smallest."""
SHORTHANDS: Final = ("@yearly", "@monthly", "@weekly", "@daily", "@hourly")

SCHEDULED: Final = "schedule-"
"""How the id of a schedule begins, and the ids of the runs that it starts."""

_SCHEDULED_RUN: Final = re.compile(rf"({SCHEDULED}.+)-\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_EVERY: Final = re.compile(r"@every [1-9][0-9]*[smhd]")
_PART: Final = re.compile(r"(?P<first>\*|[0-9]+|[a-z]+)(?:-(?P<last>[0-9]+|[a-z]+))?(?:/(?P<step>[0-9]+))?")


def schedule_of(run_id: str) -> str | None:
    """Return the id of the schedule that starts runs with such an id, or None."""
    found = _SCHEDULED_RUN.fullmatch(run_id)
    return found[1] if found else None


def checked_cron(text: str) -> str:
    """Return the expression with single spaces. Raises BadRequest if it isn't valid."""
    cron = " ".join(text.split())
    if cron in SHORTHANDS or _EVERY.fullmatch(cron):
        return cron
    if cron.startswith("@"):
        known = ", ".join((*SHORTHANDS, "@every 90m"))
        raise BadRequest(f"cron {cron!r} isn't known: write five fields, or one of {known}", field="cron")
    fields = cron.split()
    if len(fields) != len(FIELDS):
        raise BadRequest(
            f"cron {cron!r} has {len(fields)} of 5 fields: minute, hour, day of the month, month, day of the week,"
            ' such as "0 8 * * 1-5"',
            field="cron",
        )
    for text_of_field, (name, least, most, names) in zip(fields, FIELDS, strict=True):
        for part in text_of_field.lower().split(","):
            if (problem := _problem(part, least, most, names)) is not None:
                raise BadRequest(f"cron {cron!r}: {name} {text_of_field!r} {problem}", field="cron")
    return cron


def _problem(part: str, least: int, most: int, names: tuple[str, ...]) -> str | None:
    """Return why a part of a field isn't valid, or None."""
    found = _PART.fullmatch(part)
    if found is None:
        return "isn't a number, a range such as 1-5, a list such as 1,3, `*`, or a step such as */15"
    if found["step"] is not None and not 0 < int(found["step"]) <= most:
        return f"has a step that isn't between 1 and {most}"
    if found["first"] == "*":
        return None if found["last"] is None else "is a range that begins with `*`"
    ends = [_value(each, least, names) for each in (found["first"], found["last"]) if each is not None]
    if any(each is None or not least <= each <= most for each in ends):
        return f"isn't between {least} and {most}" + (f", or one of {', '.join(names)}" if names else "")
    if len(ends) == 2 and (ends[0] or 0) > (ends[1] or 0):
        return "is a range that ends before it begins"
    return None


def _value(text: str, least: int, names: tuple[str, ...]) -> int | None:
    if text.isdigit():
        return int(text)
    return least + names.index(text) if text in names else None
