"""Find installed packages with entry points for tools or skills. Loom reads only their metadata until you enable them.

    [project.entry-points."loom.tools"]
    weather = "acme_weather.tools:app"        # a LoomApp, or a function `register(app)`

    [project.entry-points."loom.skills"]
    weather = "acme_weather.skills"           # a package whose folder contains the skills

A package's code doesn't run until you enable the package with `LOOM_PACKAGES=acme-weather`. `*` enables all packages.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from loom.app.loom_app import LoomApp
from loom.domain.core.errors import BadRequest
from loom.domain.core.suggestions import nearest
from loom.domain.skills.catalog import SkillFolder

TOOLS: Final = "loom.tools"
SKILLS: Final = "loom.skills"
ALL: Final = "*"
FIELD: Final = "packages"


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """An installed distribution with entry points for Loom."""

    name: str
    version: str
    summary: str
    author: str
    tools: tuple[EntryPoint, ...] = ()
    skills: tuple[EntryPoint, ...] = ()

    @property
    def title(self) -> str:
        """The package's name and version."""
        return f"{self.name} {self.version}"


def installed() -> Mapping[str, Package]:
    """Return all packages with entry points for Loom, by normalized name. No package is imported."""
    grouped: dict[str, dict[str, list[EntryPoint]]] = {}
    distributions: dict[str, Distribution] = {}
    for group in (TOOLS, SKILLS):
        for entry in entry_points(group=group):
            if entry.dist is None:
                continue
            name = normalised(entry.dist.name)
            distributions[name] = entry.dist
            grouped.setdefault(name, {}).setdefault(group, []).append(entry)
    return {name: _package(distributions[name], found) for name, found in sorted(grouped.items())}


def enabled(setting: str, packages: Mapping[str, Package] | None = None) -> tuple[Package, ...]:
    """Return the packages named in the setting, sorted by name. Pass the installed `packages` if you know them. Raises
    BadRequest if a package isn't installed.
    """
    named = [normalised(name) for name in re.split(r"[,\s]+", setting) if name]
    if not named:
        return ()
    if packages is None:
        packages = installed()  # reading the metadata of all packages takes 20 ms
    if ALL in named:
        return tuple(packages.values())
    for name in named:
        if name not in packages:
            hint = nearest(name, packages, f"the installed packages are {', '.join(packages) or 'none'}")
            raise BadRequest(
                f"LOOM_PACKAGES names {name!r}, which is not installed or has no entry points for Loom; {hint}",
                field=FIELD,
            )
    return tuple(packages[name] for name in sorted(set(named)))


def app_of(package: Package) -> LoomApp:
    """Import the package's tools into one app.

    Raises BadRequest if an entry point can't be loaded. The error names the package and the entry point.
    """
    apps = [_loaded(package, entry) for entry in package.tools]
    if len(apps) == 1:
        return apps[0]
    whole = LoomApp()
    for app in apps:
        whole.include(app)
    return whole


def skills_of(packages: Iterable[Package]) -> tuple[SkillFolder, ...]:
    """Return the skill folders that the packages provide."""
    return tuple(
        SkillFolder(path=str(_folder(package, entry)), source=f"package {package.title}")
        for package in packages
        for entry in package.skills
    )


def unopened_skills(packages: Iterable[Package]) -> tuple[SkillFolder, ...]:
    """Return the skill folders of packages that aren't enabled. Skip folders that can't be found without an import."""
    found = ((package, _place(entry)) for package in packages for entry in package.skills)
    return tuple(SkillFolder(path=str(path), source=f"package {p.title}") for p, path in found if path.is_dir())


def normalised(name: str) -> str:
    """Return a distribution's name in normalized form (PEP 503)."""
    return name if name == ALL else re.sub(r"[-_.]+", "-", name).lower()


def _place(entry: EntryPoint) -> Path:
    folder = entry.module.replace(".", "/")
    root = Path(str(entry.dist.locate_file(folder))) if entry.dist else Path(folder)
    return root.joinpath(*(entry.attr.split("/") if entry.attr else ()))


def _package(distribution: Distribution, found: Mapping[str, Sequence[EntryPoint]]) -> Package:
    told: Any = distribution.metadata
    return Package(
        name=distribution.name,
        version=distribution.version,
        summary=str(told.get("Summary") or ""),
        author=str(told.get("Author") or told.get("Author-email") or ""),
        tools=_sorted(found.get(TOOLS, ())),
        skills=_sorted(found.get(SKILLS, ())),
    )


def _sorted(entries: Iterable[EntryPoint]) -> tuple[EntryPoint, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.name))


def _loaded(package: Package, entry: EntryPoint) -> LoomApp:
    try:
        brought = entry.load()
        if isinstance(brought, LoomApp):
            return brought
        if callable(brought):
            app = LoomApp()
            brought(app)
            return app
    except (Exception, SystemExit) as error:  # noqa: BLE001 - errors in a package are reported with its name
        why = error.message if isinstance(error, BadRequest) else f"{type(error).__name__}: {error}"
        raise BadRequest(
            f"package {package.title}, entry point {entry.name} ({entry.value}): {why}", field=FIELD
        ) from None
    raise BadRequest(
        f"package {package.title}: {entry.value} is a {type(brought).__name__}, neither a LoomApp nor a"
        " `register(app)` function",
        field=FIELD,
    )


def _folder(package: Package, entry: EntryPoint) -> Path:
    try:
        spec = find_spec(entry.module)
    except (ImportError, ValueError) as error:
        raise BadRequest(f"package {package.title}, skills {entry.value}: {error}", field=FIELD) from None
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places:
        raise BadRequest(f"package {package.title}: {entry.value} is not a folder of skills", field=FIELD)
    return Path(places[0], *(entry.attr.split("/") if entry.attr else ()))
