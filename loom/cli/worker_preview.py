"""What the running worker has, and what a worker that starts in the current directory would load."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from loom.activities.toolbox.built_in.made_tools import MadeTools
from loom.app.registry import Registry
from loom.cli.output import print_notice
from loom.composition.live_workers import live_catalogs
from loom.composition.load_settings import load_settings
from loom.composition.settings import Settings
from loom.composition.tool_registry import registry_from
from loom.domain.agents.worker_catalog import WorkerCatalog
from loom.domain.core.errors import BadRequest
from loom.domain.core.suggestions import nearest

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
    if app is not None:
        return None
    if not (found := asyncio.run(live_catalogs(load_settings()))):
        print_notice(f"found no running worker: these are the {what} that a worker started in this folder would have")
        return None
    report, catalog = found[0]
    print_notice(f"the {what} of the running worker (process {report.pid}, app {report.app or 'none'})")
    return catalog


def named(name: str, known: Mapping[str, T], kind: str, *, otherwise: str, field: str = "NAME") -> T:
    """Return the named entry. If there is none, raise BadRequest with a similar name or else with `otherwise`."""
    if name not in known:
        raise BadRequest(f"there is no {kind} {name!r}: {nearest(name, known, otherwise)}", field=field)
    return known[name]
