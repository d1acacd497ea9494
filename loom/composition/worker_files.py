"""Find the files that a worker reads as code or instructions, so that no run changes them unasked."""

import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

from loom.activities.adapters.skills.folders import PLACES
from loom.app import agent_files, crew_files
from loom.app.loading import project_of
from loom.app.registry import Registry
from loom.composition.settings import Settings
from loom.domain.permissions.obeyed import WorkerFiles
from loom.domain.tools.mcp_servers import McpServer

_SUFFIXES: Final = (*EXTENSION_SUFFIXES, ".py")
_LIBRARIES: Final = tuple({f"{sysconfig.get_path(kind)}/" for kind in ("stdlib", "platstdlib", "purelib", "platlib")})


class FilesOfWorker:
    """The files that a worker reads, in addition to those that have a known name in any project.

    Loom's own state is left out, because no tool can access it.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known = WorkerFiles()

    def add(self, registry: Registry) -> None:
        """Add what the worker's registry was read from."""
        settings = self._settings
        folders = [*settings.agents, *settings.crews, *(Path(each.path) for each in registry.skills)]
        if settings.app:
            project = project_of(settings.app)
            folders += [project / agent_files.FOLDER, project / crew_files.FOLDER]
        self._known = WorkerFiles(
            folders=frozenset(_spellings(folders)),
            files=frozenset(_spellings(_programs(registry.mcp_servers))),
        )

    def __call__(self, workspace: str) -> WorkerFiles:
        """Return what the worker reads now, also for runs in this workspace. Modules may be imported at any time."""
        return WorkerFiles(
            folders=self._known.folders.union(_linked_skills(workspace)),
            files=_with_modules(self._known.files, len(sys.modules), next(reversed(sys.modules))),
        )


def _spellings(paths: Iterable[Path]) -> Iterator[str]:
    """Yield each path as an absolute path, and without links."""
    for path in paths:
        whole = os.path.abspath(path.expanduser())  # noqa: PTH100 - links stay
        yield whole
        yield os.path.realpath(whole)


def _programs(servers: Iterable[McpServer]) -> Iterator[Path]:
    """Yield the files that the commands of MCP servers name."""
    return (path for server in servers for word in server.command if (path := Path(word).expanduser()).is_file())


@lru_cache(maxsize=8)
def _with_modules(files: frozenset[str], _count: int, _last: str) -> frozenset[str]:
    """Add the files of all imported modules except libraries. Their number and the last one tell whether any is new."""
    named = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    own = (name for name in named if isinstance(name, str) and not name.startswith(_LIBRARIES))
    return files.union(*(_of_module(name) for name in own))


@cache
def _of_module(file: str) -> Sequence[str]:
    """Return a module's file, and the files that Python would prefer to it."""
    stems = [spelled.rpartition(".")[0] or spelled for spelled in _spellings([Path(file)])]
    places = [place for stem in dict.fromkeys(stems) for place in (stem, f"{stem}/__init__")]
    return (*_spellings([Path(file)]), *(f"{place}{suffix}" for place in places for suffix in _SUFFIXES))


def _linked_skills(workspace: str) -> Iterator[str]:
    """Yield the folders to which a workspace's skills link. Their other files have a known name."""
    for place in PLACES:
        try:
            with os.scandir(f"{workspace}/{place}") as entries:
                yield from (os.path.realpath(entry.path) for entry in entries if entry.is_symlink())
        except OSError:
            continue
