"""What a skill says that it needs, and what of it is missing where its commands run.

A skill states its needs in up to three places: as text in `compatibility` ("Requires git, jq and Python 3.12+"), as
inline metadata of its Python scripts (PEP 723), and as a `requirements.txt`. Text is read with care: whatever isn't
certainly the name of a program, a Python version or the network is left to the reader.
"""

import asyncio
import json
import re
import tomllib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from loom.activities.adapters.skills.front_matter import read_skill
from loom.activities.toolbox.built_in import skill_files
from loom.activities.toolbox.built_in.shell import Sandbox
from loom.domain.core.errors import LoomError
from loom.domain.skills.documents import BrokenSkill

_SECONDS: Final = 20.0
_LONGEST: Final = 20_000
_CLAUSE: Final = re.compile(
    r"(?<!not )(?<!n't )\b(?:requires?|needs?|depends on)\b:?\s+(.+?)(?=\.\s|\.$|;|\n|$)", re.IGNORECASE
)
_PYTHON: Final = re.compile(
    r"python\s*(>=|==|~=|>)?\s*(\d+(?:\.\d+){0,2})\s*(\+|or (?:newer|later|higher|above))?", re.IGNORECASE
)
_NETWORK: Final = re.compile(r"\b(?:internet|network)\b", re.IGNORECASE)
_PROGRAM: Final = re.compile(r"`?([a-z][a-z0-9_+-]*(?:\.[a-z0-9]+)?)`?(?: (?i:cli|command|binary|executable|tool))?")
_INLINE: Final = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
"""The block of inline metadata, as in https://packaging.python.org/specifications/inline-script-metadata."""
_NOT_PROGRAMS: Final = frozenset(
    {"access", "approval", "nothing", "none", "no", "packages", "permission", "permissions", "python", "pip"}
)

_PROBE: Final = """
import importlib.metadata, json, platform, shutil, sys
asked = json.load(sys.stdin)
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
print(json.dumps({
    "python": platform.python_version(),
    "programs": [name for name in asked["programs"] if shutil.which(name)],
    "packages": {name: version(name) for name in asked["packages"]},
}))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Required:
    """What a skill needs."""

    programs: tuple[tuple[str, ...], ...] = ()
    """Programs by name. One of the names in each entry is enough."""
    python: SpecifierSet = field(default_factory=SpecifierSet)
    packages: tuple[Requirement, ...] = ()
    network: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that could be missing."""
        return not (self.programs or self.packages or self.network or str(self.python))


def stated(compatibility: str) -> Required:
    """Return what the text certainly requires."""
    programs: dict[tuple[str, ...], None] = {}
    python, network = SpecifierSet(), False
    for clause in _CLAUSE.findall(compatibility):
        for item in re.split(r",|\band\b|&|\bplus\b", clause):
            plain = re.sub(r"\([^)]*\)|\b(?:the|an?|installed)\b", " ", item).strip()
            if found := _PYTHON.search(plain):
                python &= _versions(found)
            elif _NETWORK.search(plain):
                network = True
            elif names := _alternatives(plain):
                programs[names] = None
    return Required(programs=tuple(programs), python=python, network=network)


def _versions(found: re.Match[str]) -> SpecifierSet:
    """Return the versions that the text means: `Python 3.12` and `Python 3.12+` or newer ones, `Python 3` any 3.x."""
    is_major = "." not in found[2]
    operator = found[1] or ("~=" if is_major and not found[3] else ">=")
    return SpecifierSet(f"{operator}{found[2]}{'.0' if is_major else ''}")


def _alternatives(text: str) -> tuple[str, ...]:
    """Return the names of programs, if the text consists of nothing else."""
    matches = [_PROGRAM.fullmatch(each.strip()) for each in re.split(r"\bor\b|/", text)]
    names = tuple(match[1] for match in matches if match and match[1] not in _NOT_PROGRAMS)
    return names if len(names) == len(matches) else ()


def declared(script: str) -> Required:
    """Return what a Python script's inline metadata requires. Invalid metadata requires nothing."""
    found = _INLINE.search(script.replace("\r\n", "\n"))
    if found is None:
        return Required()
    lines = (line[2:] if line.startswith("# ") else line[1:] for line in found["content"].splitlines())
    try:
        block: dict[str, Any] = tomllib.loads("\n".join(lines))
        python = SpecifierSet(str(block.get("requires-python", "")))
    except (tomllib.TOMLDecodeError, InvalidSpecifier):
        return Required()
    dependencies = block.get("dependencies")
    return Required(python=python, packages=tuple(_packages(dependencies if isinstance(dependencies, list) else ())))


def listed(requirements: str) -> Required:
    """Return what a `requirements.txt` requires. Options and addresses are skipped."""
    return Required(packages=tuple(_packages(line.split(" #")[0].strip() for line in requirements.splitlines())))


def _packages(lines: Iterable[object]) -> Iterator[Requirement]:
    for line in lines:
        try:
            yield Requirement(str(line))
        except InvalidRequirement:
            continue


def required_by(root: str) -> Required:
    """Return what the skill in this folder requires. What can't be read requires nothing."""
    try:
        described, _ = read_skill(root, "")
        parts = [stated(described.skill.compatibility)]
        for file in skill_files.files_of(root):
            name = file.path.rpartition("/")[2]
            if file.size > skill_files.LONGEST or not (name.endswith(".py") or name == "requirements.txt"):
                continue
            text = skill_files.read(root, file.path, skill_files.LONGEST).decode("utf-8", "replace")
            parts.append(listed(text) if name == "requirements.txt" else declared(text))
    except (BrokenSkill, OSError):
        return Required()
    python = SpecifierSet()
    for part in parts:
        python &= part.python
    packages = {str(each): each for part in parts for each in part.packages}
    return Required(
        programs=tuple(dict.fromkeys(name for part in parts for name in part.programs)),
        python=python,
        packages=tuple(packages.values()),
        network=any(part.network for part in parts),
    )


async def unmet(required: Required, sandbox: Sandbox | None, workspace: Path) -> Sequence[str]:
    """Return one phrase for each requirement that commands in this sandbox don't meet."""
    if required.is_empty or sandbox is None:
        return ()
    names = sorted({name for names in required.programs for name in names})
    asked = {"programs": names, "packages": sorted({each.name for each in required.packages})}
    try:
        finished = await sandbox.run(
            [sandbox.python, "-I", "-c", _PROBE],
            workspace=workspace,
            timeout=_SECONDS,
            max_output=_LONGEST,
            on_output=lambda _text: None,
            stdin=json.dumps(asked).encode(),
        )
        found = json.loads(finished.output)
    except (LoomError, ValueError) as error:
        return (f"nothing could be checked ({str(error)[:200] or 'no answer'})",)
    return tuple(_missing(required, found))


def _missing(required: Required, found: dict[str, Any]) -> Iterator[str]:
    for names in required.programs:
        if not any(name in found["programs"] for name in names):
            yield f"the program {' or '.join(names)}"
    if not required.python.contains(found["python"], prereleases=True):
        yield f"Python {required.python} (commands have {found['python']})"
    here = {"python_full_version": found["python"], "python_version": ".".join(found["python"].split(".")[:2])}
    for package in required.packages:
        if package.marker is None or package.marker.evaluate(here):
            yield from _missing_package(package, found["packages"].get(package.name))
    if required.network:
        yield "access to the network"


def _missing_package(package: Requirement, version: str | None) -> Iterator[str]:
    if version is None:
        yield f"the Python package {package}"
    elif not package.specifier.contains(version, prereleases=True):
        yield f"the Python package {package} (commands have {version})"


def note_of(missing: Sequence[str]) -> str:
    """Return what a model reads about missing requirements, or an empty string."""
    if not missing:
        return ""
    return (
        f"(This skill requires what commands don't have here: {'; '.join(missing)}. Where a step depends on it, find "
        "another way, or say what is missing.)"
    )


def noting(sandbox: Sandbox | None) -> Callable[[str, Path], Awaitable[str]]:
    """Return the function that notes, for a model, what of a skill's requirements is missing in this sandbox."""

    async def note_of_missing(root: str, workspace: Path) -> str:
        return note_of(await unmet(await asyncio.to_thread(required_by, root), sandbox, workspace))

    return note_of_missing
