"""Parse the text of a SKILL.md file: front matter between `---` lines, followed by the body. Parsing is lenient and
reports warnings.

A skill is rejected only if it has no front matter or no description. Any other deviation from the format is accepted
and reported as a warning, because most skills were written for other programs. The caller parses the YAML into strings,
lists and mappings.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from loom.domain.core.tokens import text_tokens
from loom.domain.skills.catalog import BODY_TOKENS, Skill

FILE: Final = "SKILL.md"
NAMES: Final = (FILE, "skill.md")
"""Valid names of the file."""
LONGEST_NAME: Final = 64
LONGEST_DESCRIPTION: Final = 1024
LONGEST_COMPATIBILITY: Final = 500
MOST_LINES: Final = 500

_FIELDS: Final = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
_NAME: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_ENTRY: Final = re.compile(r"(?P<key>[A-Za-z][\w-]*):[ \t]+(?P<value>\S.*)")
_TOOL: Final = re.compile(r"[^\s,()]+(?:\([^()]*\))?")


class BrokenSkill(Exception):
    """The skill is unusable. The message explains how to fix it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A SKILL.md file, split into its two parts."""

    front: str
    body: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """A skill, with its file's deviations from the format."""

    skill: Skill
    warnings: tuple[str, ...] = ()


def split(text: str) -> Document:
    """Split the file into its two parts. Raises BrokenSkill if it has no front matter."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() != "---":
        raise BrokenSkill(f"{FILE} has no front matter: begin it with a `---` line, then `name:` and `description:`")
    end = next((number for number, line in enumerate(lines[1:], start=1) if line.rstrip() == "---"), None)
    if end is None:
        raise BrokenSkill(f"the front matter of {FILE} has no end: put a `---` line after it")
    return Document(front="\n".join(lines[1:end]), body="\n".join(lines[end + 1 :]).strip())


def quoted(front: str) -> str:
    """Quote plain values in the front matter that contain a colon, because YAML would read them as mappings."""
    return "\n".join(map(_quoted, front.split("\n")))


def described(front: Any, document: Document, *, root: str, source: str) -> Described:
    """Return the skill that the front matter describes. Raises BrokenSkill if the skill is unusable."""
    if not isinstance(front, Mapping):
        raise BrokenSkill(f"the front matter of {FILE} is not a mapping: write `name:` and `description:` lines")
    description = _text(front.get("description"))
    if not description:
        raise BrokenSkill("there is no description: say what the skill does and when to use it")
    folder = root.rpartition("/")[2]
    given = _text(front.get("name"))
    skill = Skill(
        name=_usable(given or folder),
        description=description,
        root=root,
        source=source,
        license=_text(front.get("license")),
        compatibility=_text(front.get("compatibility")),
        metadata=_texts(front.get("metadata")),
        allowed_tools=_tools(front.get("allowed-tools")),
    )
    return Described(skill=skill, warnings=tuple(_warnings(front, given, folder, skill, document.body)))


def _quoted(line: str) -> str:
    entry = _ENTRY.fullmatch(line.rstrip())
    if entry is None or entry["value"][0] in "\"'|>[{&*!#" or ": " not in f"{entry['value']} ":
        return line
    return f'{entry["key"]}: "{entry["value"].replace(chr(92), chr(92) * 2).replace(chr(34), chr(92) + chr(34))}"'


def _usable(name: str) -> str:
    """Return a valid name that is derived from the given name. Raises BrokenSkill if the derived name would be
    empty.
    """
    usable = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:LONGEST_NAME].rstrip("-")
    if not usable:
        raise BrokenSkill(f"its name {name!r} contains neither a letter from a to z nor a digit: choose another name")
    return usable


def _warnings(front: Mapping[str, Any], given: str, folder: str, skill: Skill, body: str) -> Iterator[str]:
    yield from _of_name(given, folder, skill)
    most = {"description": LONGEST_DESCRIPTION, "compatibility": LONGEST_COMPATIBILITY}
    for field, limit in most.items():
        if (length := len(getattr(skill, field))) > limit:
            yield f"`{field}` has {length} characters; the maximum is {limit}"
    if "metadata" in front and not _is_flat(front["metadata"]):
        yield "`metadata` is not a mapping of strings to strings"
    if unknown := sorted(str(key) for key in front if key not in _FIELDS):
        yield f"unknown fields {', '.join(unknown)}: the format has {', '.join(_FIELDS)}"
    yield from _of_body(body)


def _of_name(given: str, folder: str, skill: Skill) -> Iterator[str]:
    if not given:
        yield f"there is no name: it is called {skill.name}, after its folder"
    elif not _NAME.fullmatch(given) or len(given) > LONGEST_NAME:
        rule = f"1 to {LONGEST_NAME} of a-z, 0-9 and single hyphens between them"
        yield f"the name {given!r} is not {rule}: it is called {skill.name}"
    elif given != folder:
        yield f"the name {given!r} differs from its folder's name, {folder!r}"


def _of_body(body: str) -> Iterator[str]:
    if not body:
        yield "there are no instructions after the front matter"
    if (tokens := text_tokens(body)) > BODY_TOKENS:
        yield f"the instructions have about {tokens} tokens: move parts that are not always needed into separate files"
    if (lines := body.count("\n") + 1) > MOST_LINES:
        yield f"the instructions have {lines} lines; the maximum is {MOST_LINES}"


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def _is_flat(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(each, str) for each in value.values())


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        return {}
    return {str(key): str(each) for key, each in value.items()}


def _tools(value: object) -> tuple[str, ...]:
    """Return the names and rules from a list, or from a string in which spaces or commas separate them."""
    texts = value if isinstance(value, list) else [value]
    return tuple(name for text in texts if isinstance(text, str) for name in _TOOL.findall(text))
