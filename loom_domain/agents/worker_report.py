"""A running worker's report, and whether the worker could prepare a run.

Commands and clients read the reports of the live workers. What they say is then true of the worker that runs, and a
request that no worker can serve is refused before a run starts.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject
from loom.domain.core.model_names import is_model, unknown_model
from loom.domain.core.requests import RunRequest
from loom.domain.core.suggestions import nearest
from loom.domain.permissions.bounds import Bounds
from loom.domain.permissions.dead_rules import dead_by_name
from loom.domain.permissions.judge import Mode


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerReport:
    """A worker, as it describes itself while it runs."""

    identity: str
    """The name under which Temporal lists the worker."""
    host: str
    pid: int
    version: str
    """The version of Loom."""
    started_at: datetime
    told_at: datetime
    """The time of this report. A worker reports every few seconds."""
    app: str | None = None
    model: JsonObject = field(default_factory=dict)
    """The default model and whether it can be called, as `loom doctor --json` shows it."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The settings that differ from their defaults, as JSON. Of a secret, this is only a digest."""
    bounds: Bounds = field(default_factory=Bounds)
    """The workspaces and modes that the worker serves."""
    owner_bounds: Bounds = field(default_factory=Bounds)
    """The same for runs that the owner of the worker's key has signed."""
    prefixes: tuple[str, ...] = ()
    """The prefixes of the models that the worker knows."""
    agents: tuple[str, ...] = ()
    crews: tuple[str, ...] = ()
    skills: tuple[str, ...] | None = None
    """The skills of all runs. None if workspaces may provide others."""
    tools: tuple[str, ...] | None = None
    """The tools that don't come from MCP servers. None if an older worker doesn't report them."""
    servers: tuple[str, ...] = ()
    """The MCP servers."""
    approval_keys: tuple[str, ...] = ()
    """The IDs of the keys that approvals must be proven with. Empty if the worker demands no proof."""


def problem_with(request: RunRequest, report: WorkerReport, *, is_owner: bool) -> BadRequest | None:
    """Return the reason that this worker would refuse the request, or None if the report doesn't contain one.

    `is_owner` says whether the client signs the request with a key, which may be the worker's.
    """
    if request.forked_from is None and (error := _unknown_name(request, report)) is not None:
        return error  # a fork has the agent, the crew and the skills of the other run
    if request.model is not None and not is_model(request.model, report.prefixes):
        return unknown_model(request.model, report.prefixes)
    workspace = request.workspace if isinstance(request.workspace, str) else ""
    if dead := dead_by_name(request.permissions, report.tools, report.servers, workspace=workspace):
        return BadRequest("; ".join(dead), field="permissions")
    bounds = report.owner_bounds if is_owner else report.bounds
    try:
        if request.mode is not None:
            bounds.refuse_mode(Mode(request.mode))
        if workspace:
            bounds.refuse_workspace(workspace)
    except BadRequest as error:
        return error
    return None


def _unknown_name(request: RunRequest, report: WorkerReport) -> BadRequest | None:
    if request.crew is None and request.agent not in report.agents:
        return unknown_agent(request.agent, report.agents)
    if isinstance(request.crew, str) and request.crew not in report.crews:
        return _unknown("crew", request.crew, report.crews)
    if (
        report.skills is None
        or (missing := next((each for each in request.skills if each not in report.skills), None)) is None
    ):
        return None
    error = _unknown("skill", missing, report.skills, field_name="skills")
    return BadRequest(f"{error.message}. A workspace's own skills need LOOM_TRUSTED_FOLDERS", field="skills")


def unknown_agent(name: str, known: Collection[str]) -> BadRequest:
    """Return the error for an agent that a worker doesn't have, with a similar name if there is one."""
    new = "If it is new, restart the worker, which loads agents when it starts"
    hint = nearest(name, known, f"known: {', '.join(sorted(known))}. {new}")
    return BadRequest(f"unknown agent {name!r}; {hint}", field="agent")


def _unknown(kind: str, name: str, known: Collection[str], *, field_name: str = "") -> BadRequest:
    hint = nearest(name, known, f"there are {', '.join(sorted(known)) or 'none'}")
    return BadRequest(f"there is no {kind} {name!r}: {hint}", field=field_name or kind)
