"""Skills: folders of instructions that a run loads when it needs them.

A skill is loaded in three steps, so that a hundred skills cost little: its line of the catalog is in every prompt, the
model loads the body when it needs it, and the body refers to resources and scripts. The skills that a run may load are
chosen when the run is prepared and pinned into its spec, each with a digest of its files.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from loom.domain.core.messages import JsonObject
from loom.domain.core.tokens import within
from loom.domain.core.tool_calls import ToolSpec

LOAD_SKILL: Final = "load_skill"
"""The tool by which a model makes a skill active."""
READ_RESOURCE: Final = "read_skill_resource"
RUN_SCRIPT: Final = "run_skill_script"
SKILL_TOOLS: Final = (LOAD_SKILL, READ_RESOURCE, RUN_SCRIPT)
"""The tools that a run with skills gets in addition to its own."""
COMPILED: Final = "skill__"
"""Prefix of the names of tools that are scripts of a skill."""

LINE_TOKENS: Final = 80
"""Longest line of one skill in the catalog, in characters; a longer description is truncated."""
CATALOG_TOKENS: Final = 4000
"""Longest catalog, in characters. If not all skills fit, it has those that match the task best."""
BODY_TOKENS: Final = 5000
"""Longest instructions of one skill in the context; the model reads the rest of a longer body as a resource."""
ACTIVE_TOKENS: Final = 25_000
"""Longest instructions of all active skills together that compression keeps."""

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
    """Its source: `project`, `user`, `app …`, `package …`."""
    license: str = ""
    compatibility: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    allowed_tools: tuple[str, ...] = ()
    """Tools that its author suggests to allow. They are shown to people and have no effect by themselves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PinnedSkill:
    """A skill as pinned into a run, reduced to what prompts and tools need."""

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
    """The skill that a tool call uses, as pinned into the run."""

    name: str
    root: str
    digest: str
    script: str = ""
    """The script, if the called tool is one."""
    is_active: bool = False
    """Whether its instructions are in the conversation or in the prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SkillFolder:
    """A folder that holds skills."""

    path: str
    source: str
    """Its source: `project`, `user`, `app …`, `package NAME VERSION`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SkillProblem:
    """Why a skill, or a folder of skills, could not be read as intended."""

    path: str
    source: str
    why: str
    is_warning: bool = False
    """Whether the skill is available nevertheless."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundSkills:
    """The skills found for one workspace."""

    skills: tuple[Skill, ...] = ()
    """One of each name, sorted."""
    hidden: tuple[Skill, ...] = ()
    """Skills that are hidden by one of the same name from a closer source."""
    problems: tuple[SkillProblem, ...] = ()
    untrusted: tuple[SkillFolder, ...] = ()
    """Folders that were not searched."""


def pinned(skill: Skill, *, digest: str, tools: Mapping[str, str], body: str = "") -> PinnedSkill:
    """The skill, reduced to what is pinned into a run."""
    return PinnedSkill(
        name=skill.name,
        description=within(" ".join(skill.description.split()), LINE_TOKENS),
        root=skill.root,
        digest=digest,
        tools=dict(tools),
        body=body,
    )


def catalog(skills: Iterable[PinnedSkill]) -> str:
    """The catalog for the prompt: one line for each skill that can be loaded; empty if there are none."""
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
    """The skill that a call of this tool uses: the one that has the script, or the one named in the arguments."""
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
    """The name of a script as a tool: `skill__pdf__fill_form` for `scripts/fill-form.py`."""
    stem = script.rpartition("/")[2].partition(".")[0]
    return f"{COMPILED}{skill}__{''.join(c if c.isascii() and c.isalnum() else '_' for c in stem).lower()}"


def goes_along(tool: ToolSpec) -> bool:
    """Whether calls carry the tool's definition with them, since no worker registers it: a made tool or a script."""
    return tool.source != "" or tool.name.startswith(COMPILED)


def is_of_the_run(tool: ToolSpec) -> bool:
    """Whether the tool belongs to one run and not to a worker: its agent made it, or it serves the run's skills."""
    return tool.source != "" or is_skill_tool(tool.name)


def is_skill_tool(name: str) -> bool:
    """Whether a run has the tool of this name only because it has skills."""
    return name in SKILL_TOOLS or name.startswith(COMPILED)


def line_of(name: str, description: str) -> str:
    """One skill's line in the catalog."""
    return f"- {name}: {within(' '.join(description.split()), LINE_TOKENS)}"
