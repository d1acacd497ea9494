"""Find skills in the folders of the workspace, the user, the app and packages. Earlier folders in this list take
precedence.
"""

import asyncio
import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loom.activities.adapters.skills.front_matter import read_skill
from loom.domain.agents.skill_selection import resolved
from loom.domain.skills.catalog import FoundSkills, Skill, SkillFolder, SkillProblem
from loom.domain.skills.documents import NAMES, BrokenSkill

PLACES: Final = (".loom/skills", ".agents/skills", ".claude/skills")
"""Skill folders in a workspace and in a home directory. Earlier folders take precedence."""
PROJECT: Final = "project"
USER: Final = "user"
MOST_FOLDERS: Final = 2000
DEEPEST: Final = 6
LINK: Final = "it is a link to a folder that is not a skill, and such links are not followed"
_SKIPPED: Final = frozenset({".git", "node_modules", "__pycache__", ".venv"})


@dataclass(frozen=True, kw_only=True, slots=True)
class SkillFolders:
    """Finds skills on a worker's disk."""

    home: Path | None
    """The home directory that provides skills, or None if there is none."""
    trusted: Sequence[Path] = ()
    """Only workspaces in these folders may provide skills."""
    others: Sequence[SkillFolder] = ()
    """Skill folders of the app and of packages."""

    async def find(self, workspace: Path) -> FoundSkills:
        """Return all skills for a run in this workspace. This method never raises an error."""
        return await asyncio.to_thread(self.found, workspace)

    def found(self, workspace: Path) -> FoundSkills:
        """Return all skills for a run in this workspace. This method runs in the calling thread."""
        own = [SkillFolder(path=str(workspace / place), source=PROJECT) for place in PLACES]
        users = [SkillFolder(path=str(self.home / place), source=USER) for place in PLACES] if self.home else []
        is_home = workspace == self.home
        trusted = is_home or self.trusts(workspace)
        looks = [skills_in(folder) for folder in (*(own if trusted and not is_home else ()), *users, *self.others)]
        closed = () if trusted else tuple(folder for folder in own if Path(folder.path).is_dir())
        levels = [look.skills for look in looks if look.skills]
        skills, hidden = resolved(levels) if levels else ((), ())
        problems = [problem for look in looks for problem in look.problems]
        return FoundSkills(
            skills=skills,
            hidden=hidden,
            problems=(*(_untrusted(folder, workspace) for folder in closed), *problems),
            untrusted=closed,
        )

    def trusts(self, workspace: Path) -> bool:
        """Whether the workspace is a trusted folder or is inside one. Only then may its skills be loaded."""
        return any(workspace.is_relative_to(folder.resolve()) for folder in self.trusted)


@dataclass(frozen=True, slots=True)
class SkillsInFolder:
    """The skills in one folder."""

    skills: Sequence[Skill]
    problems: Sequence[SkillProblem]


def skills_in(folder: SkillFolder) -> SkillsInFolder:
    """Return the skills in this folder and its subfolders. Trust isn't checked."""
    skills: list[Skill] = []
    problems: list[SkillProblem] = []
    for root, why in _roots(folder):
        if why:
            problems.append(SkillProblem(path=root, source=folder.source, why=why))
            continue
        try:
            found, _ = read_skill(root, folder.source)
        except BrokenSkill as error:
            problems.append(SkillProblem(path=root, source=folder.source, why=str(error)))
            continue
        skills.append(found.skill)
        problems += [SkillProblem(path=root, source=folder.source, why=why, is_warning=True) for why in found.warnings]
    return SkillsInFolder(skills, problems)


def _roots(folder: SkillFolder) -> Iterator[tuple[str, str]]:
    """Yield each folder that contains a SKILL.md. The search starts with this folder and goes down level by level. If a
    folder can't be read, yield the reason.
    """
    waiting = deque([(os.path.realpath(folder.path), 0)])
    for _ in range(MOST_FOLDERS):
        if not waiting:
            return
        here, depth = waiting.popleft()
        try:
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield here, f"it cannot be read: {error.strerror or error}"
            continue
        if any(entry.name in NAMES for entry in entries):
            yield here, ""
            continue
        yield from (_linked(entry) for entry in entries if entry.is_symlink() and entry.is_dir())
        if depth < DEEPEST:
            waiting.extend((entry.path, depth + 1) for entry in entries if _is_open(entry))
    yield folder.path, f"it has more than {MOST_FOLDERS} folders: the others were not searched"


def _linked(entry: os.DirEntry[str]) -> tuple[str, str]:
    """Return the target of a link to a skill, or the reason why the link isn't followed. Installers link several
    folders to a single copy of a skill. No other links are followed.
    """
    real = os.path.realpath(entry)
    return (real, "") if any(os.path.lexists(f"{real}/{name}") for name in NAMES) else (entry.path, LINK)


def _is_open(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) and entry.name not in _SKIPPED


def _untrusted(folder: SkillFolder, workspace: Path) -> SkillProblem:
    why = (
        f"the workspace is not trusted, so its skills are not loaded: review them, then add {workspace} to"
        " LOOM_TRUSTED_FOLDERS"
    )
    return SkillProblem(path=folder.path, source=folder.source, why=why)
