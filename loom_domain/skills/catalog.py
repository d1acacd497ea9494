"""Skills: folders of instructions that a run loads when it needs them.

Three layers, so that a hundred of them cost next to nothing: one line of the catalog each, in every prompt; the body,
when the model loads it; resources and scripts, when the body sends it to them. What a run may load is chosen when the
run is prepared and pinned into its spec, each skill with a digest of its files.
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
"""What a run with skills has beside its other tools."""
COMPILED: Final = "skill__"
"""How the names of tools begin that are scripts of a skill."""

LINE_TOKENS: Final = 80
"""Of one skill's line in the catalog; of a longer description the beginning."""
CATALOG_TOKENS: Final = 4000
"""Of the whole catalog: where not all skills fit, those that fit the task best are in it."""
BODY_TOKENS: Final = 5000
"""Of one skill's instructions in the context; the rest of a longer body is read like a resource."""
ACTIVE_TOKENS: Final = 25_000
"""Of all active skills' instructions that a compression leaves where they are."""

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
    """Where it comes from: `project`, `user`, `app …`, `package …`."""
    license: str = ""
    compatibility: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    allowed_tools: tuple[str, ...] = ()
    """What its author would have allowed; shown to people, and allows nothing by itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PinnedSkill:
    """A skill as a run was started with it: what its prompts and its tools need of it, and no more."""

    name: str
    description: str
    root: str
    digest: str
    tools: Mapping[str, str] = field(default_factory=dict)
    """Scripts that are tools of the run: the path in the folder by the tool's name."""
    body: str = ""
    """Its instructions, where they are active from the start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SkillUse:
    """The skill that a tool call is about, as the run is pinned to it."""

    name: str
    root: str
    digest: str
    script: str = ""
    """The script, where the call is of a compiled tool."""
    is_active: bool = False
    """Its instructions are in the conversation, or in the prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SkillFolder:
    """A folder that holds skills."""

    path: str
    source: str
    """Whose it is: `project`, `user`, `app …`, `package NAME VERSION`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SkillProblem:
    """Why a skill, or a folder of them, is not there as it was meant."""

    path: str
    source: str
    why: str
    is_warning: bool = False
    """It is there all the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundSkills:
    """What was found for one workspace."""

    skills: tuple[Skill, ...] = ()
    """One of each name, sorted."""
    hidden: tuple[Skill, ...] = ()
    """Those that had to give way to one of their name from a nearer place."""
    problems: tuple[SkillProblem, ...] = ()
    untrusted: tuple[SkillFolder, ...] = ()
    """Folders that were not looked into."""


def pinned(skill: Skill, *, digest: str, tools: Mapping[str, str], body: str = "") -> PinnedSkill:
    """The skill as a run keeps it."""
    return PinnedSkill(
        name=skill.name,
        description=within(" ".join(skill.description.split()), LINE_TOKENS),
        root=skill.root,
        digest=digest,
        tools=dict(tools),
        body=body,
    )


def catalog(skills: Iterable[PinnedSkill]) -> str:
    """What every prompt says of the skills that can be loaded: a line each; empty where there are none."""
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
    """The skill that a call of this tool is about: the one whose script it is, or that its arguments name."""
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
    """What a script is called as a tool: `skill__pdf__fill_form` for `scripts/fill-form.py`."""
    stem = script.rpartition("/")[2].partition(".")[0]
    return f"{COMPILED}{skill}__{''.join(c if c.isascii() and c.isalnum() else '_' for c in stem).lower()}"


def goes_along(tool: ToolSpec) -> bool:
    """Whether a call brings its tool with it, as no worker has one like it: an agent made it, or it is a script."""
    return tool.source != "" or tool.name.startswith(COMPILED)


def is_of_the_run(tool: ToolSpec) -> bool:
    """Whether a run has this tool as no worker has it: its agent made it, or it is about the run's skills."""
    return tool.source != "" or is_skill_tool(tool.name)


def is_skill_tool(name: str) -> bool:
    """Whether a tool of this name comes and goes with a run's skills."""
    return name in SKILL_TOOLS or name.startswith(COMPILED)


def line_of(name: str, description: str) -> str:
    """One skill's line in the catalog."""
    return f"- {name}: {within(' '.join(description.split()), LINE_TOKENS)}"
