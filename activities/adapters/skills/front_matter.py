"""Read the SKILL.md in one folder. This is the only module that parses a skill's YAML."""

from typing import Any

import yaml

from loom.activities.toolbox.built_in.skill_files import document_of
from loom.domain.skills.documents import BrokenSkill, Described, Document, described, quoted

LONGEST = 64 * 1024
"""Maximum number of characters in the front matter."""


def read_skill(root: str, source: str) -> tuple[Described, Document]:
    """Return the skill in this folder with its warnings, and its text. Raises BrokenSkill if the skill is invalid. The
    error explains how to fix it.
    """
    _, document = document_of(root)
    if len(document.front) > LONGEST:
        raise BrokenSkill("the front matter has more than 64 KB: put instructions after it, not into it")
    return described(_mapping(document.front), document, root=root, source=source), document


def _mapping(front: str) -> Any:
    try:
        return _loaded(front)
    except (yaml.YAMLError, RecursionError) as error:
        first = error
    try:
        return _loaded(quoted(front))
    except (yaml.YAMLError, RecursionError):
        raise BrokenSkill(f"the front matter is not YAML: {_reason(first)}") from None


def _loaded(text: str) -> Any:
    # All scalars are strings. Dates and objects aren't created, and `yes` isn't converted to true.
    return yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506


def _reason(error: Exception) -> str:
    if not isinstance(error, yaml.MarkedYAMLError):
        return " ".join(str(error).split())[:200] or "it is nested too deeply"
    # Line 1 of the file is the `---` before the front matter.
    where = f"line {error.problem_mark.line + 2}: " if error.problem_mark else ""
    return f"{where}{error.problem or error.context}"
