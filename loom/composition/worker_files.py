"""Find the files that a worker reads as code or instructions, so that no run changes them unasked."""

import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

import structlog

from loom.activities.adapters.definition_files import DefinitionFiles, DefinitionFolder
from loom.activities.adapters.skills.folders import PLACES, SkillFolders
from loom.app import agent_files, crew_files
from loom.app.loading import project_of
from loom.app.registry import Registry
from loom.composition.settings import Settings
from loom.domain.permissions.obeyed import WorkerFiles
from loom.domain.tools.mcp_servers import McpServer

_log = structlog.get_logger("loom.worker")

_SUFFIXES: Final = (*EXTENSION_SUFFIXES, ".py")
_LIBRARIES: Final = tuple({f"{sysconfig.get_path(kind)}/" for kind in ("stdlib", "platstdlib", "purelib", "platlib")})


class FilesOfWorker:
    """The files that a worker reads, in addition to those that have a known name in any project.

    Loom's own state is left out, because no tool can access it.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known = WorkerFiles()
        self.definitions = DefinitionFiles(settings.home)
        """The agent, crew and skill files, and what is recorded of their changes."""

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
        self.definitions.add(_definitions(settings, registry))

    def __call__(self, workspace: str) -> WorkerFiles:
        """Return what the worker reads now, also for runs in this workspace. Modules may be imported at any time."""
        return WorkerFiles(
            folders=self._known.folders.union(_linked_skills(workspace)),
            files=_with_modules(self._known.files, len(sys.modules), next(reversed(sys.modules))),
        )


def tell_changed_files(definitions: DefinitionFiles, settings: Settings, task_queue: str) -> None:
    """Log each agent, crew or skill file that has changed since a worker of this task queue last started here."""
    for each in definitions.changes_since_last_start(settings.temporal_namespace, task_queue):
        by_run = {"run_id": each.run_id, "call_id": each.call_id} if each.run_id else {}
        later = {} if each.is_latest else {"note": "something else has changed the file since this run"}
        _log.warning("worker_files_changed", path=each.path, change=each.change, **by_run, **later)


def _definitions(settings: Settings, registry: Registry) -> Iterator[DefinitionFolder]:
    """Yield the folders with definitions that the worker reads when it starts or for each run, without those of other
    workspaces.
    """
    projects = [settings.home, *([project_of(settings.app)] if settings.app else [])]
    for kind, own in ((agent_files, settings.agents), (crew_files, settings.crews)):
        for folder in (*(project / kind.FOLDER for project in projects), *own):
            yield DefinitionFolder(os.path.abspath(folder.expanduser()), kind.ENDINGS)  # noqa: PTH100 - links stay
    for each in registry.skills:
        yield DefinitionFolder(os.path.abspath(each.path))  # noqa: PTH100
    library = SkillFolders(home=settings.skills_home, trusted=settings.trusted_folders)
    workspace = Path(settings.workspace or Path.cwd()).resolve()
    for above in (settings.skills_home, workspace if library.trusts(workspace) else None):
        if above is not None:
            yield from (DefinitionFolder(str(above / place)) for place in PLACES)


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
    spelled = dict.fromkeys(_spellings([Path(file)]))
    stems = dict.fromkeys(each.rpartition(".")[0] or each for each in spelled)
    places = [place for stem in stems for place in (stem, f"{stem}/__init__")]
    return (*spelled, *(f"{place}{suffix}" for place in places for suffix in _SUFFIXES))


def _linked_skills(workspace: str) -> Iterator[str]:
    """Yield the folders to which a workspace's skills link. Their other files have a known name."""
    for place in PLACES:
        try:
            with os.scandir(f"{workspace}/{place}") as entries:
                yield from (os.path.realpath(entry.path) for entry in entries if entry.is_symlink())
        except OSError:
            continue
