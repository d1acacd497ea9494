"""What the running worker has, and what a worker that starts in the current directory would load."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from loom.activities.ports import StreamUnavailable
from loom.activities.toolbox.built_in.made_tools import MadeTools
from loom.app.registry import Registry
from loom.cli.output import print_notice
from loom.composition.live_workers import live_catalogs
from loom.composition.load_settings import load_settings
from loom.composition.settings import Settings
from loom.composition.tool_registry import registry_from
from loom.domain.agents.worker_catalog import WorkerCatalog
from loom.domain.agents.worker_report import WorkerReport
from loom.domain.core.errors import BadRequest
from loom.domain.core.suggestions import nearest

STARTED_HERE: Final = "a worker started in this folder"

T = TypeVar("T")


def with_app(settings: Settings, app: str | None) -> Settings:
    """Return the settings. If `--app` is given, it overrides LOOM_APP."""
    return settings.model_copy(update={"app": app}) if app else settings


def load_registry(settings: Settings, files: Sequence[Path] = (), *, checks_rules: bool = True) -> Registry:
    """Load a worker's registry and the agents in `files`. Raises BadRequest if a definition is invalid."""
    return registry_from(settings, MadeTools(sandbox=None), files=files, checks_rules=checks_rules)


def running_worker(app: str | None, what: str) -> WorkerCatalog | None:
    """Return what the newest running worker has. Return None if an app is named, or if no worker is running. Tell the
    person whose `what` the command speaks of.
    """
    found = None if app is not None else _newest_worker(f"these are the {what} that {STARTED_HERE} would have")
    if found is None:
        return None
    report, catalog = found
    print_notice(f"the {what} of the running worker ({_about(report)})")
    return catalog


def note_preview(app: str | None, kind: str) -> None:
    """Tell the person that this is the agent or the crew that a worker which starts here would have.

    The report of a running worker doesn't contain enough to show it.
    """
    told = f"this is the {kind} that {STARTED_HERE} would have"
    if app is None and (found := _newest_worker(told)) is not None:
        print_notice(f"{told}; the running worker ({_about(found[0])}) may have another")


def _newest_worker(otherwise: str) -> tuple[WorkerReport, WorkerCatalog] | None:
    """Return the newest running worker. If there is none, tell the person why, and what is shown otherwise."""
    settings = load_settings()
    try:
        found = asyncio.run(live_catalogs(settings))
    except StreamUnavailable as error:
        print_notice(f"can't ask for the running worker: {str(error).rstrip('.')}; {otherwise}")
        return None
    if not found:
        without = "" if settings.redis_url else " (workers report themselves in Redis, and LOOM_REDIS_URL isn't set)"
        print_notice(f"found no running worker{without}: {otherwise}")
        return None
    return found[0]


def _about(report: WorkerReport) -> str:
    return f"process {report.pid}, app {report.app or 'none'}"


def named(name: str, known: Mapping[str, T], kind: str, *, otherwise: str, field: str = "NAME") -> T:
    """Return the named entry. If there is none, raise BadRequest with a similar name or else with `otherwise`."""
    if name not in known:
        raise BadRequest(f"there is no {kind} {name!r}: {nearest(name, known, otherwise)}", field=field)
    return known[name]
