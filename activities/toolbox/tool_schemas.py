"""Complete and clean the JSON Schema of a tool's arguments, so that every provider accepts it.

A provider rejects each request that lists a tool whose schema it doesn't accept. A schema therefore has two forms:
arguments are validated against its own rules (`checked`), and models see what OpenAI, Anthropic and Gemini all accept
(`shown`):

    an object with `properties` at the top, without `anyOf`, `oneOf`, `allOf`, `enum` or `not` beside them
    one type for each value, `items` for each array, and no required argument that isn't a property
    names of arguments with accepted characters (`argument_name`); `original` restores the tool's own names

Both forms depend only on the schema, so every worker makes the same ones.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from loom.activities.json_schemas import DATA, NAMED, BrokenSchema, subschemas
from loom.activities.toolbox.schema_forms import mended, merged, shown_form, target
from loom.domain.core.argument_names import argument_name
from loom.domain.core.errors import ToolValidationError
from loom.domain.core.json_text import with_whole_escapes
from loom.domain.core.messages import JsonObject, canonical

DEEPEST: Final = 64
"""Maximum number of nested JSON values in a schema. Some providers allow 100 in a whole request."""

_NO_OBJECT: Final = "its schema does not describe an object"
_APPLIED: Final = ("anyOf", "oneOf", "allOf")
_ALSO_APPLIED: Final = ("if", "then", "else", "not")
_OF_ITEMS: Final = ("items", "contains", "unevaluatedItems")
_OF_OTHERS: Final = ("additionalProperties", "unevaluatedProperties")


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolSchema:
    """The two forms of a tool's schema."""

    checked: JsonObject
    """What the arguments must match, under the tool's own names."""
    shown: JsonObject
    """What models see."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The tool's own name of each argument that models see under another one, at any level."""

    def original(self, arguments: JsonObject) -> JsonObject:
        """Return the arguments under the tool's own names. Other keys, such as those of a free object, stay as they
        are. Raises ToolValidationError if an argument has different values under its two names.
        """
        return _Renaming(self).of(arguments, (self.checked,)) if self.names else arguments


class _Level:
    """The schemas that apply to one value, and those that apply to the values in it."""

    def __init__(self, applied: Sequence[Mapping[str, Any]]) -> None:
        items = [each[key] for each in applied for key in _OF_ITEMS if key in each]
        self.items = (*items, *(item for each in applied for item in each.get("prefixItems", ())))
        others = [each[key] for each in applied for key in _OF_OTHERS if key in each]
        self._others = (*others, *(item for each in applied for item in each.get("patternProperties", {}).values()))
        self._tables = [each["properties"] for each in applied if "properties" in each]
        self._members: dict[str, tuple[str, tuple[Any, ...]]] = {}

    def member(self, key: str, names: Mapping[str, str]) -> tuple[str, tuple[Any, ...]]:
        """Return the tool's own name of a key, and the schemas that apply to its value."""
        if key not in self._members:
            own = names.get(key, key)
            name = own if any(own in table for table in self._tables) else key
            inner = (*self._others, *(table[name] for table in self._tables if name in table))
            self._members[key] = (name, inner)
        return self._members[key]


class _Renaming:
    """Renames the arguments of one call. Values with the same schemas, such as the rows of a table, share one level."""

    def __init__(self, schema: ToolSchema) -> None:
        self._schema = schema
        self._levels: dict[tuple[int, ...], _Level] = {}
        self._known: dict[int, _Level] = {}
        """The levels of lists of schemas that a level contains. They stay alive as long as it does."""

    def of(self, value: Any, schemas: tuple[Any, ...]) -> Any:
        """Return the value under the tool's own names."""
        if isinstance(value, list | tuple):
            inner = self._level(schemas).items
            return [self.of(item, inner) for item in value]
        if not isinstance(value, Mapping):
            return value
        level, made = self._level(schemas), dict[str, Any]()
        for key, item in value.items():
            name, inner = level.member(key, self._schema.names)
            renamed = self.of(item, inner)
            if name in made and not _is_same(made[name], renamed):
                raise ToolValidationError(
                    f"`{argument_name(name)}` is given twice, with different values: send it once"
                )
            made[name] = renamed
        return made

    def _level(self, schemas: tuple[Any, ...]) -> _Level:
        if (known := self._known.get(id(schemas))) is not None:
            return known
        key = tuple(map(id, schemas))
        if key not in self._levels:
            self._levels[key] = _Level(self._applied(schemas))
        self._known[id(schemas)] = self._levels[key]
        return self._levels[key]

    def _applied(self, schemas: Iterable[Any]) -> list[Mapping[str, Any]]:
        """Return every schema that may apply to the same value as these."""
        found: dict[int, Mapping[str, Any]] = {}
        waiting = list(schemas)
        while waiting:
            schema = waiting.pop()
            if not isinstance(schema, Mapping) or id(schema) in found:
                continue
            found[id(schema)] = schema
            waiting += [each for key in _APPLIED for each in schema.get(key, ())]
            waiting += [schema[key] for key in _ALSO_APPLIED if key in schema]
            waiting += schema.get("dependentSchemas", {}).values()
            if "$ref" in schema:
                waiting.append(target(schema["$ref"], self._schema.checked))
        return list(found.values())


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are the same in JSON. In Python, 1 equals `True`."""
    return one is other or canonical({"": one}) == canonical({"": other})


def tool_schema(schema: object) -> ToolSchema:
    """Return both forms of a schema. Raises BrokenSchema with the reason if it can't be made acceptable.

    A schema from an untrusted source may still be unsound: `ArgumentSchema` checks this, too.
    """
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        raise BrokenSchema(_NO_OBJECT)
    try:
        text = json.dumps(schema)
        checked = mended(json.loads(with_whole_escapes(text), parse_constant=lambda _constant: None))
        if _depth(checked) > DEEPEST:
            raise BrokenSchema("its schema is nested too deeply")
        if "object" not in _types(checked):
            raise BrokenSchema(_NO_OBJECT)
        checked["type"] = "object"
        names = _changed_names(checked)
        whole = merged(checked)
        if whole is None:
            raise BrokenSchema(_NO_OBJECT)
        shown = shown_form(whole)
    except RecursionError:
        raise BrokenSchema("its schema is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise BrokenSchema(f"its schema is not JSON: {str(error)[:100]}") from None
    return ToolSchema(checked=checked, shown=shown, names=names)


def _types(schema: JsonObject) -> list[str]:
    given = schema.get("type", "object")
    return [given] if isinstance(given, str) else list(given)


def _depth(value: Any) -> int:
    deepest, waiting = 0, [(value, 1)]
    while waiting:
        inner, level = waiting.pop()
        deepest = max(deepest, level)
        items = inner.values() if isinstance(inner, Mapping) else inner if isinstance(inner, list) else ()
        waiting += [(item, level + 1) for item in items]
    return deepest


def _changed_names(schema: JsonObject) -> Mapping[str, str]:
    tables = [table for each in subschemas(schema) if isinstance(table := each.get("properties"), Mapping)]
    declared = {name for table in tables for name in table}
    changed = {shown: name for name in sorted(declared) if (shown := argument_name(name)) != name}
    if taken := declared & changed.keys():
        raise BrokenSchema(f"two of its arguments would be called {min(taken)}")
    return changed


def with_own_names(shown: JsonObject) -> JsonObject:
    """Return a schema that models see with the tool's own names. An argument with another name has its own as title."""
    return cast("JsonObject", _under_own_names(shown))


def _under_own_names(node: Any, *, names: bool = False) -> Any:
    if isinstance(node, list):
        return [_under_own_names(each) for each in node]
    if not isinstance(node, Mapping):
        return node
    made = {
        key: value if key in DATA and not names else _under_own_names(value, names=key in NAMED and not names)
        for key, value in node.items()
    }
    if names or not isinstance(table := made.get("properties"), Mapping):
        return made
    own = {name: _own_name(name, schema) for name, schema in table.items()}
    made["properties"] = {own[name]: schema for name, schema in table.items()}
    if "required" in made:
        made["required"] = [own.get(name, name) for name in made["required"]]
    return made


def _own_name(name: str, schema: Any) -> str:
    title = schema.get("title") if isinstance(schema, Mapping) else None
    return title if isinstance(title, str) and argument_name(title) == name else name
