"""Skills: folders with instructions that a run loads on demand.

Because skills are loaded in three steps, even a hundred skills use few tokens. Every prompt contains one catalog line
per skill. The model loads a skill's body when it needs the skill, and loads resources and scripts when the body refers
to them. A run's skills are selected when the run is prepared. They are pinned into its spec, each with a digest of its
files.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from loom.domain.core.messages import JsonObject
from loom.domain.core.tokens import within
from loom.domain.core.tool_calls import ToolSpec

LOAD_SKILL: Final = "load_skill"
"""The tool that a model calls to activate a skill."""
READ_RESOURCE: Final = "read_skill_resource"
RUN_SCRIPT: Final = "run_skill_script"
SKILL_TOOLS: Final = (LOAD_SKILL, READ_RESOURCE, RUN_SCRIPT)
"""The additional tools of a run that has skills."""
COMPILED: Final = "skill__"
"""The name prefix of tools that are skill scripts."""

LINE_TOKENS: Final = 80
"""The maximum number of tokens in a skill's catalog line. A longer description is truncated."""
CATALOG_TOKENS: Final = 4000
"""The maximum number of tokens in the catalog. If not all skills fit, the catalog contains the best matches for the
task.
"""
BODY_TOKENS: Final = 5000
"""The maximum number of tokens that one skill's instructions may use in the context. If the body is longer, the model
can read the rest in the same way as a resource.
"""
ACTIVE_TOKENS: Final = 25_000
"""A compression keeps at most this many tokens of the active skills' instructions."""

CATALOG_HEAD: Final = (
    "Instructions for special work. When the task touches one of these, call load_skill with its name before you begin,"
    " and follow what it says."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Skill:
    """A skill as described by its SKILL.md."""

    name: str
    description: str
    root: str
    """The absolute path of the skill's folder on the worker."""
    source: str = ""
    """The skill's origin: `project`, `user`, `app …`, `package …`."""
    license: str = ""
    compatibility: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    allowed_tools: tuple[str, ...] = ()
    """The tools that the skill's author suggests allowing. People can see the list, but it doesn't grant any
    permissions.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class PinnedSkill:
    """A skill as pinned to a run, with only the data that the run's prompts and tools need."""

    name: str
    description: str
    root: str
    digest: str
    tools: Mapping[str, str] = field(default_factory=dict)
    """Scripts that are tools of the run, as a mapping from tool names to paths in the folder."""
    body: str = ""
    """The skill's instructions, if the skill is active from the start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SkillUse:
    """The skill that a tool call refers to, as pinned to the run."""

    name: str
    root: str
    digest: str
    script: str = ""
    """The script, if the call is to a script tool."""
    is_active: bool = False
    """Whether the skill's instructions are in the conversation or in the prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SkillFolder:
    """A folder that contains skills."""

    path: str
    source: str
    """The folder's origin: `project`, `user`, `app …`, `package NAME VERSION`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SkillProblem:
    """The reason why a skill or a skill folder is missing or deviates from the format."""

    path: str
    source: str
    why: str
    is_warning: bool = False
    """Whether the skill is available despite the problem."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundSkills:
    """The skills found for one workspace."""

    skills: tuple[Skill, ...] = ()
    """One skill per name, sorted by name."""
    hidden: tuple[Skill, ...] = ()
    """Skills hidden by a skill with the same name in an earlier folder."""
    problems: tuple[SkillProblem, ...] = ()
    untrusted: tuple[SkillFolder, ...] = ()
    """Folders that weren't searched."""


def pinned(skill: Skill, *, digest: str, tools: Mapping[str, str], body: str = "") -> PinnedSkill:
    """Return the skill in the form that is pinned to a run."""
    return PinnedSkill(
        name=skill.name,
        description=within(" ".join(skill.description.split()), LINE_TOKENS),
        root=skill.root,
        digest=digest,
        tools=dict(tools),
        body=body,
    )


def catalog(skills: Iterable[PinnedSkill]) -> str:
    """Return the prompt's list of loadable skills, with one line per skill, or an empty string if there are none."""
    lines = [line_of(skill.name, skill.description) for skill in skills if not skill.body]
    return "\n".join((CATALOG_HEAD, *lines)) if lines else ""


def active_instructions(skills: Iterable[PinnedSkill]) -> str:
    """Return the instructions of the skills that are active from the start."""
    return "\n\n".join(
        f'<skill_content name="{skill.name}">\n{skill.body}\n</skill_content>' for skill in skills if skill.body
    )


def use_of(
    skills: Iterable[PinnedSkill], tool: str, arguments: JsonObject, *, active: Set[str] = frozenset()
) -> SkillUse | None:
    """Return the skill that a call to this tool refers to. This is the skill that contains the script, or the skill
    that the arguments name.
    """
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
    """Return a script's tool name: `skill__pdf__fill_form` for `scripts/fill-form.py`."""
    stem = script.rpartition("/")[2].partition(".")[0]
    return f"{COMPILED}{skill}__{''.join(c if c.isascii() and c.isalnum() else '_' for c in stem).lower()}"


def goes_along(tool: ToolSpec) -> bool:
    """Whether a call must include its tool's definition. Workers don't have the definition if an agent created the tool
    or if the tool is a script.
    """
    return tool.source != "" or tool.name.startswith(COMPILED)


def is_of_the_run(tool: ToolSpec) -> bool:
    """Whether only this run has the tool, because its agent created it or it belongs to the run's skills."""
    return tool.source != "" or is_skill_tool(tool.name)


def is_skill_tool(name: str) -> bool:
    """Whether a tool with this name belongs to a run's skills."""
    return name in SKILL_TOOLS or name.startswith(COMPILED)


def line_of(name: str, description: str) -> str:
    """Return one skill's line in the catalog."""
    return f"- {name}: {within(' '.join(description.split()), LINE_TOKENS)}"
