"""Skill scripts that declare themselves as tools in a comment block, similar to inline metadata (PEP 723).

    # /// loom-tool
    # description = "Count the words of a text."
    # timeout = 30
    # [parameters.text]
    # type = "string"
    # ///

Each entry of `parameters` is the JSON Schema of one argument. Arguments without a `default` are required. The script
receives its arguments as one JSON object on standard input, and its output is the result. Reading the block doesn't run
the script.
"""

import tomllib
from collections.abc import Mapping
from typing import Any, Final

from loom.domain.core.tool_calls import Effect, Scope, ToolSpec, Verdict
from loom.domain.skills.documents import BrokenSkill

BEGIN: Final = "# /// loom-tool"
END: Final = "# ///"
LONGEST_NAME: Final = 64
"""The maximum length of a tool name that providers accept."""
LONGEST: Final = 600.0
GRACE: Final = 10.0
"""The number of seconds that are added to the script's own timeout, so that there is time to stop the script and read
its output.
"""
_FIELDS: Final = ("description", "parameters", "timeout")


def tool_of(text: str, name: str, *, timeout: float) -> ToolSpec | None:
    """Return the tool that a script declares, or None. Raises BrokenSkill if the declaration is invalid.

    The tool always needs approval and is treated as a tool with side effects, regardless of its declaration.
    """
    block = _block(text)
    if block is None:
        return None
    try:
        told = tomllib.loads(block)
    except tomllib.TOMLDecodeError as error:
        raise BrokenSkill(f"its `loom-tool` block is not valid TOML: {error}") from None
    if unknown := sorted(set(told) - set(_FIELDS)):
        raise BrokenSkill(f"its `loom-tool` block has unknown fields {', '.join(unknown)}: known: {', '.join(_FIELDS)}")
    description = told.get("description")
    if not isinstance(description, str) or not description.strip():
        raise BrokenSkill("its `loom-tool` block has no description: say what the tool does")
    if len(name) > LONGEST_NAME:
        raise BrokenSkill(f"as a tool, it would be called {name}, which is longer than {LONGEST_NAME} characters")
    return ToolSpec(
        name=name,
        description=description.strip()[:1000],
        parameters=_schema(told.get("parameters", {})),
        effect=Effect.ONCE,
        timeout=_seconds(told.get("timeout"), timeout) + GRACE,
        scope=Scope.SYSTEM,
        declared=Verdict.ASK,
    )


def _block(text: str) -> str | None:
    lines = text.replace("\r\n", "\n").split("\n")
    if BEGIN not in lines:
        return None
    inside: list[str] = []
    for line in lines[lines.index(BEGIN) + 1 :]:
        if line == END:
            return "\n".join(inside)
        if not line.startswith("#"):
            break
        inside.append(line[2:] if line.startswith("# ") else line[1:])
    raise BrokenSkill(f"its `loom-tool` block has no end: put a `{END}` line after it")


def _schema(parameters: object) -> dict[str, Any]:
    if not isinstance(parameters, Mapping) or not all(isinstance(each, Mapping) for each in parameters.values()):
        raise BrokenSkill("its `parameters` are not tables: write [parameters.NAME] with `type = …`")
    required = [name for name, schema in parameters.items() if "default" not in schema]
    return {
        "type": "object",
        "properties": dict(parameters),
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _seconds(given: object, otherwise: float) -> float:
    if given is None:
        return otherwise
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= LONGEST:
        raise BrokenSkill(f"its `timeout` is not a number of seconds up to {LONGEST:g}")
    return float(given)
