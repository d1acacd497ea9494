"""Skills: folders of instructions that a run loads when it needs them.

Three layers make even a hundred skills cheap: one line of the catalog in every prompt; the body, when the model loads
it; resources and scripts, when the body refers to them. The skills of a run are selected when it is prepared and pinned
into its spec, each with a digest of its files.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from loom.domain.core.messages import JsonObject
from loom.domain.core.tokens import within
from loom.domain.core.tool_calls import ToolSpec

LOAD_SKILL: Final = "load_skill"
"""The tool with which a model activates a skill."""
READ_RESOURCE: Final = "read_skill_resource"
RUN_SCRIPT: Final = "run_skill_script"
SKILL_TOOLS: Final = (LOAD_SKILL, READ_RESOURCE, RUN_SCRIPT)
"""The tools that a run with skills has in addition."""
COMPILED: Final = "skill__"
"""Prefix of the names of tools that are scripts of a skill."""

LINE_TOKENS: Final = 80
"""Maximum tokens of one skill's line in the catalog. A longer description is cut."""
CATALOG_TOKENS: Final = 4000
"""Maximum tokens of the catalog. If not all skills fit, it contains those that fit the task best."""
BODY_TOKENS: Final = 5000
"""Maximum tokens of one skill's instructions in the context. The rest of a longer body is read like a resource."""
ACTIVE_TOKENS: Final = 25_000
"""Maximum tokens of active skills' instructions that a compression keeps."""

CATALOG_HEAD: Final = (
    "Instructions for special work. When the task touches one of these, call load_skill with its name before you begin,"
    " and follow what it says."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Skill:
    """One skill as its SKILL.md describes it."""

    name: str
    description: str
    root: str
    """Its folder, absolute, on the worker."""
    source: str = ""
    """Its origin: `project`, `user`, `app …`, `package …`."""
    license: str = ""
    compatibility: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    allowed_tools: tuple[str, ...] = ()
    """What its author would allow. It is shown to people and grants nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PinnedSkill:
    """A skill as a run was started with it: only what its prompts and tools need."""

    name: str
    description: str
    root: str
    digest: str
    tools: Mapping[str, str] = field(default_factory=dict)
    """Scripts that are tools of the run: tool names, mapped to paths in the folder."""
    body: str = ""
    """Its instructions, if they are active from the start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SkillUse:
    """The skill that a tool call refers to, as it is pinned to the run."""

    name: str
    root: str
    digest: str
    script: str = ""
    """The script, if the call is of a script tool."""
    is_active: bool = False
    """Whether its instructions are in the conversation, or in the prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SkillFolder:
    """A folder that contains skills."""

    path: str
    source: str
    """Its origin: `project`, `user`, `app …`, `package NAME VERSION`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SkillProblem:
    """Why a skill, or a folder of them, is missing or deviates from the format."""

    path: str
    source: str
    why: str
    is_warning: bool = False
    """The skill is available nevertheless."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundSkills:
    """The skills found for one workspace."""

    skills: tuple[Skill, ...] = ()
    """One of each name, sorted."""
    hidden: tuple[Skill, ...] = ()
    """Those that are hidden by one of the same name in an earlier place."""
    problems: tuple[SkillProblem, ...] = ()
    untrusted: tuple[SkillFolder, ...] = ()
    """Folders that were not searched."""


def pinned(skill: Skill, *, digest: str, tools: Mapping[str, str], body: str = "") -> PinnedSkill:
    """The skill as it is pinned to a run."""
    return PinnedSkill(
        name=skill.name,
        description=within(" ".join(skill.description.split()), LINE_TOKENS),
        root=skill.root,
        digest=digest,
        tools=dict(tools),
        body=body,
    )


def catalog(skills: Iterable[PinnedSkill]) -> str:
    """What every prompt says about the skills that can be loaded: a line each; empty if there are none."""
    lines = [line_of(skill.name, skill.description) for skill in skills if not skill.body]
    return "\n".join((CATALOG_HEAD, *lines)) if lines else ""


def active_instructions(skills: Iterable[PinnedSkill]) -> str:
    """The instructions of the skills that are active from the start."""
    return "\n\n".join(
        f'<skill_content name="{skill.name}">\n{skill.body}\n</skill_content>' for skill in skills if skill.body
    )


def use_of(
    skills: Iterable[PinnedSkill], tool: str, arguments: JsonObject, *, active: Set[str] = frozenset()
) -> SkillUse | None:
    """The skill that a call of this tool refers to: the one whose script it is, or that its arguments name."""
    named = arguments.get("name" if tool == LOAD_SKILL else "skill")
    for skill in skills:
        if tool in skill.tools or (tool in SKILL_TOOLS and named == skill.name):
            return SkillUse(
                name=skill.name,
                root=skill.root,
                digest=skill.digest,
                script=skill.tools.get(tool, ""),
                is_active=tool == LOAD_SKILL and (skill.body != "" or skill.name in active),
            )
    return None


def tool_name(skill: str, script: str) -> str:
    """The tool name of a script: `skill__pdf__fill_form` for `scripts/fill-form.py`."""
    stem = script.rpartition("/")[2].partition(".")[0]
    return f"{COMPILED}{skill}__{''.join(c if c.isascii() and c.isalnum() else '_' for c in stem).lower()}"


def goes_along(tool: ToolSpec) -> bool:
    """Whether a call includes its tool, which no worker has: an agent created it, or it is a script."""
    return tool.source != "" or tool.name.startswith(COMPILED)


def is_of_the_run(tool: ToolSpec) -> bool:
    """Whether only this run has the tool: its agent created it, or it belongs to the run's skills."""
    return tool.source != "" or is_skill_tool(tool.name)


def is_skill_tool(name: str) -> bool:
    """Whether a tool of this name belongs to a run's skills."""
    return name in SKILL_TOOLS or name.startswith(COMPILED)


def line_of(name: str, description: str) -> str:
    """One skill's line in the catalog."""
    return f"- {name}: {within(' '.join(description.split()), LINE_TOKENS)}"
