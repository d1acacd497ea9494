"""A folder from which `pip install loom-agents` works without a network.

It has the wheel of this checkout and one of each distribution that it requires. The latter have the metadata and the
commands: pip resolves the requirements and installs what it finds. The modules themselves, 500 MB, aren't copied. Only
those that Loom requires can be imported, from the environment that runs the tests.
"""

import stat
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path, PurePath
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_WHEEL: Final = "Wheel-Version: 1.0\nGenerator: loom-tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def fill(folder: Path, wheel: Path) -> None:
    """Put this wheel and those of its requirements into the folder."""
    (folder / wheel.name).write_bytes(wheel.read_bytes())
    needed = tuple(_needed(_distribution_in(wheel), frozenset({"testing"})))
    modules = folder / "modules"
    modules.mkdir()
    here = Path(sysconfig.get_path("purelib"))
    for name in {name for each in needed for name in _top_level(each)}:
        (modules / name).symlink_to(here / name)
    for each in needed:
        _write_wheel(folder, each, modules)


def _distribution_in(wheel: Path) -> Distribution:
    name, version, *_ = wheel.name.split("-")
    return PathDistribution(zipfile.Path(wheel, f"{name}-{version}.dist-info/"))


def _needed(root: Distribution, extras: frozenset[str]) -> Iterator[Distribution]:
    """All distributions that this one requires with these extras, each once."""
    waiting = [(root, extras)]
    seen: set[tuple[str, frozenset[str]]] = set()
    given: set[str] = set()
    while waiting:
        parent, extras = waiting.pop()
        for requirement in _requirements(parent, extras):
            key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
            if key not in seen:
                seen.add(key)
                found = root if key[0] == canonicalize_name(root.name) else distribution(requirement.name)
                waiting.append((found, key[1]))
                if found is not root and key[0] not in given:
                    given.add(key[0])
                    yield found


def _requirements(parent: Distribution, extras: Iterable[str]) -> Iterator[Requirement]:
    for line in parent.requires or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def _top_level(found: Distribution) -> set[str]:
    names = {file.parts[0] for file in found.files or ()}
    return {name for name in names if name not in ("..", "__pycache__") and not name.endswith((".dist-info", ".pth"))}


def _write_wheel(folder: Path, found: Distribution, modules: Path) -> None:
    stem = f"{canonicalize_name(found.name).replace('-', '_')}-{found.version}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{stem}.dist-info/WHEEL", _WHEEL)
        archive.writestr(f"{stem}.dist-info/RECORD", "")
        for name in ("METADATA", "entry_points.txt"):
            if text := found.read_text(name):
                archive.writestr(f"{stem}.dist-info/{name}", text)
        archive.writestr(f"{stem}.pth", f"{modules}\n")  # where Python finds the modules, however often it is told
        for program in _programs(found):
            script = zipfile.ZipInfo(f"{stem}.data/scripts/{program.name}")
            script.external_attr = (stat.S_IFREG | 0o755) << 16
            archive.writestr(script, f'#!/bin/sh\nexec "{program}" "$@"\n')


def _programs(found: Distribution) -> Iterator[Path]:
    """The commands that the distribution brings as files. Pip writes the others itself."""
    written = {each.name for each in found.entry_points if each.group == "console_scripts"}
    for file in found.files or ():
        path = PurePath(file)
        if path.parts[0] == ".." and path.parent.name == "bin" and path.name not in written:
            program = Path(sys.prefix) / "bin" / path.name
            assert program.read_bytes()[:4] == b"\x7fELF", f"{program} would run in another environment"
            yield program
