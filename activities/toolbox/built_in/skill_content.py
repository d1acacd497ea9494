"""Format the output of the skill tools: a skill's instructions with the names of its resources, and single files."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

from loom.activities.ports import ToolOutput
from loom.activities.toolbox.built_in import skill_files
from loom.activities.toolbox.built_in.files import ReadFile, page
from loom.domain.core.errors import ToolUnavailableError, ToolValidationError
from loom.domain.core.tokens import text_tokens
from loom.domain.skills.catalog import BODY_TOKENS, READ_RESOURCE, RUN_SCRIPT, SkillUse
from loom.domain.skills.documents import BrokenSkill

MOST_LISTED: Final = 100
"""Maximum number of resources that are listed with a skill's instructions."""


def content(use: SkillUse) -> ToolOutput:
    """Return the instructions between tags, followed by the names of the resources."""
    try:
        file, document = skill_files.document_of(use.root)
        changed = changed_since(use)
        resources = [each for each in skill_files.files_of(use.root) if each.path != file]
    except (BrokenSkill, OSError) as error:
        raise ToolUnavailableError(f"the skill {use.name} cannot be loaded any more: {error}") from None
    body = within_limit(document.body, file, use.name).replace("</skill_content>", "<\\/skill_content>")
    text = f'<skill_content name="{use.name}">\n{body}\n</skill_content>{_listed(resources)}'
    return ToolOutput(text=f"{changed}\n{text}" if changed else text, is_warning=bool(changed))


def within_limit(body: str, file: str, skill: str) -> str:
    """Return the instructions. If they are too long, return as many complete lines as fit, and explain how to read the
    rest.
    """
    if text_tokens(body) <= BODY_TOKENS:
        return body
    lines = body.split("\n")
    used = shown = 0
    while shown < len(lines) and (used := used + text_tokens(lines[shown]) + 1) <= BODY_TOKENS:
        shown += 1
    return "\n".join(
        (*lines[:shown], f"[{len(lines) - shown} more lines: use {READ_RESOURCE}, skill {skill}, path {file}]")
    )


def _listed(resources: Sequence[skill_files.SkillFile]) -> str:
    if not resources:
        return ""
    lines = [f"- {file.path} ({file.size} bytes)" for file in resources[:MOST_LISTED]]
    if len(resources) > MOST_LISTED:
        lines.append(f"- … and {len(resources) - MOST_LISTED} more")
    ways = f"Read them with {READ_RESOURCE}, and run scripts with {RUN_SCRIPT}"
    return "\n".join(("\n<skill_resources>", *lines, "</skill_resources>", f"({ways}.)"))


def resource(use: SkillUse, asked: ReadFile) -> ToolOutput:
    """Return a page of one of the skill's files."""
    try:
        with skill_files.opened(use.root, asked.path) as file:
            shown = page(file, asked)
        changed = changed_since(use)
    except OSError as error:
        raise ToolValidationError(missing(use, asked.path, error)) from None
    return ToolOutput(text=f"{changed}\n{shown}" if changed else shown, is_warning=bool(changed))


def changed_since(use: SkillUse) -> str:
    """Return a warning if the files have changed since the run started, and otherwise an empty string. Raises OSError
    if a file can't be read.
    """
    now = skill_files.digest_of(use.root)
    if now == use.digest:
        return ""
    return f"The files of the skill {use.name} have changed since this run began (then {use.digest}, now {now})."


def missing(use: SkillUse, path: str, error: OSError) -> str:
    """Return a message that explains what to do if a file is missing."""
    try:
        names = [file.path for file in skill_files.files_of(use.root)]
    except OSError:
        return f"the skill {use.name} no longer exists ({error.strerror or error}): go on without it"
    near = get_close_matches(path, names, n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(names[:20])}"
    return f"{path} is not a file of the skill {use.name} ({error.strerror or error}): {hint}"
