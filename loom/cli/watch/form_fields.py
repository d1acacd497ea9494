"""Read the fields of an MCP server's form from the schema, and their values from what a person types.

MCP limits these schemas to an object with properties of simple types: texts, numbers, booleans, one of several values,
or several of them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject
from loom.domain.core.tool_input import wrong_answer

_YES: Final = ("y", "yes", "true", "1")
_NO: Final = ("n", "no", "false", "0")
_FORMATS: Final = {
    "email": (r"[^@\s]+@[^@\s]+", "an email address"),
    "uri": (r"[A-Za-z][A-Za-z0-9+.-]*:\S+", "an address such as https://example.com"),
    "date": (r"\d{4}-\d{2}-\d{2}", "a date such as 2026-01-31"),
    "date-time": (r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}.*", "a time such as 2026-01-31T12:00:00Z"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class FormField:
    """One field of a form."""

    name: str
    form: Mapping[str, Any]
    """The field's own schema."""
    is_required: bool = False

    @property
    def prefilled(self) -> str:
        """The default value, as a person would type it."""
        return _typed(self.form.get("default"))

    @property
    def choices(self) -> tuple[tuple[Any, str], ...]:
        """The values that the field accepts, with their titles. Empty if it accepts any."""
        inner = self.form.get("items") if self.form.get("type") == "array" else self.form
        inner = inner if isinstance(inner, Mapping) else {}
        if values := inner.get("enum"):
            return tuple(zip(values, map(str, inner.get("enumNames") or values), strict=False))
        titled = [each for each in inner.get("oneOf") or inner.get("anyOf") or () if isinstance(each, Mapping)]
        return tuple((each["const"], str(each.get("title", each["const"]))) for each in titled if "const" in each)

    @property
    def described(self) -> str:
        """What to type, in one line."""
        what = str(self.form.get("description") or self.form.get("title") or "")
        return "; ".join(part for part in (what, self._accepted, "" if self.is_required else "optional") if part)

    @property
    def _accepted(self) -> str:
        if self.choices:
            named = [str(value) if str(value) == title else f"{value} ({title})" for value, title in self.choices]
            several = "any of, with commas between them: " if self.form.get("type") == "array" else ""
            return several + ", ".join(named)
        kind = str(self.form.get("type", "string"))
        known = {"boolean": "yes or no", "integer": "a whole number", "number": "a number"}
        return known.get(kind) or _FORMATS.get(str(self.form.get("format")), ("", ""))[1]

    def read(self, text: str) -> Any:
        """Return the value that a person has typed, or None for no value. Raises BadRequest if it isn't one."""
        text = text.strip()
        if not text and not self.is_required:
            return None
        if not text and self.form.get("type") != "string":
            raise BadRequest(f"the form needs {self.name}", field=self.name)
        value = self._converted(text)
        if why := wrong_answer({"properties": {self.name: self.form}}, {self.name: value}) or self._beyond(value):
            raise BadRequest(why, field=self.name)
        return value

    def _converted(self, text: str) -> Any:
        match self.form.get("type"):
            case "boolean" if text.casefold() in (*_YES, *_NO):
                return text.casefold() in _YES
            case "integer" if re.fullmatch(r"[+-]?\d+", text):
                return int(text)
            case "number" if re.fullmatch(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", text):
                return float(text) if re.search(r"[.eE]", text) else int(text)
            case "boolean" | "integer" | "number":
                raise BadRequest(f"{self.name} must be {self._accepted}", field=self.name)
            case "array":
                return [self._chosen(part.strip()) for part in text.split(",") if part.strip()]
        return self._chosen(text)

    def _chosen(self, text: str) -> Any:
        """Return the value that has this title."""
        return next((value for value, title in self.choices if text in (str(value), title)), text)

    def _beyond(self, value: Any) -> str | None:
        """Return which limit of its schema the value exceeds, or None."""
        form = self.form
        match value:
            case bool():
                return None
            case int() | float():
                return _outside(self.name, value, form.get("minimum"), form.get("maximum"))
            case list():
                return _outside(self.name, len(value), form.get("minItems"), form.get("maxItems"), " values")
        pattern, what = _FORMATS.get(str(form.get("format")), ("", ""))
        if pattern and re.fullmatch(pattern, str(value)) is None:
            return f"{self.name} must be {what}"
        return _outside(self.name, len(value), form.get("minLength"), form.get("maxLength"), " characters long")


def _outside(name: str, size: float, least: float | None, most: float | None, unit: str = "") -> str | None:
    if least is not None and size < least:
        return f"{name} must be at least {least}{unit}"
    if most is not None and size > most:
        return f"{name} must be at most {most}{unit}"
    return None


def form_fields(schema: JsonObject) -> tuple[FormField, ...]:
    """Return the form's fields in order."""
    required, properties = schema.get("required") or (), schema.get("properties") or {}
    return tuple(
        FormField(name=name, form=form if isinstance(form, Mapping) else {}, is_required=name in required)
        for name, form in properties.items()
    )


def _typed(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ", ".join(map(str, value))
    return str(value)
