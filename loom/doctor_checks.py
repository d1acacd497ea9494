"""The checks that `loom doctor` runs, one for each component.

The checks run concurrently and take at most two seconds.

Each check returns a report entry, which contains `ok` and facts such as the version. If the check failed, the entry
also contains a `hint` that suggests a fix.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import psycopg
import redis.asyncio
from redis.exceptions import RedisError
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetSystemInfoRequest
from temporalio.service import RPCError, RPCStatusCode

from loom.activities.adapters.redis.permits import read_states
from loom.activities.adapters.sandbox.bubblewrap import enforcement, find_program, find_sandbox
from loom.activities.adapters.sandbox.namespaces import Bubblewrap
from loom.activities.adapters.temporal.errors import unconnected
from loom.activities.adapters.temporal.task_faults import FAILING_RUNS, task_fault
from loom.activities.ports import StreamUnavailable
from loom.composition.live_workers import live_pollers, live_reports, pid_here
from loom.composition.settings import Settings
from loom.composition.temporal_connection import connect, connected
from loom.composition.worker_report import differences, different_approval_keys
from loom.domain.core.errors import UnreachableError
from loom.domain.permissions.bounds import Bounds
from loom.domain.tools.mcp_servers import read_servers
from loom.stack.home import ROOM_TO_GO_ON
from loom.stack.services import FAIR_QUEUES, TUNED_RATES, status_of, temporal_database
from loom.stack.state import StackState, command_line
from loom.store_sizes import file_sizes, folder_size, key_sizes, size_and_growth, table_sizes

Entry = dict[str, Any]
PATIENCE = 2.0
STARTS_WITHIN = 30.0
"""Seconds that the HTTP service may take to respond after its start."""
MOST_SHOWN = 5
"""Number of runs that need a repair and are named."""
OPEN_TO_OTHERS = (
    "Other users of this machine can read, start, approve and steer runs, and so run commands as the worker's user."
    " `loom down` and `loom up --private` keep them out. With LOOM_REQUIRE_SIGNED=on, runs only refuse what they send."
)
_WAL = b"\x02\x02"  # bytes 18 and 19 of a SQLite file in WAL mode


async def in_time(question: Awaitable[Entry], *, hint: str, patience: float = PATIENCE) -> Entry:
    """Return the check's entry. If the check fails or exceeds `patience` seconds, return an entry with the hint."""
    try:
        return await asyncio.wait_for(question, patience)
    except UnreachableError as error:
        return {"ok": False, "hint": error.message}
    except (RuntimeError, RPCError, OSError, psycopg.Error, RedisError) as error:
        reason = unconnected(error)[:200] if str(error) else f"no answer within {patience:.0f} s"
        return {"ok": False, "hint": f"{hint} ({reason})" if reason else hint}


async def temporal(settings: Settings, state: StackState, home: Path) -> Entry:
    """Check the server and the Namespace. For the embedded server, also check whether tuned settings took effect."""
    client = await connect(settings)
    service = client.workflow_service
    info = await service.get_system_info(GetSystemInfoRequest())
    await service.describe_namespace(DescribeNamespaceRequest(namespace=settings.temporal_namespace))
    part = state.parts.get("temporal")
    if part is None or part.address != settings.temporal_address:
        return {"ok": True, "version": info.server_version, "ui": None}
    tuning = _tuning(temporal_database(home), command_line(part.pid))
    found: Entry = {"ok": all(tuning.values()), "version": info.server_version, "ui": state.ui, "tuning": tuning}
    database = temporal_database(home)
    size = sum(file_sizes(database.parent.glob(f"{database.name}*")))  # SQLite's log is another file
    found |= size_and_growth(home, "temporal", str(home), size)
    if shutil.disk_usage(home).free < ROOM_TO_GO_ON:
        return {**found, "ok": False, "hint": f"the disk that contains {home} is full: free some space"}
    if not found["ok"]:
        found["hint"] = (
            "the server runs without its tuned settings, so each turn takes longer: run `loom down`, then `loom up`"
        )
    return found


async def postgres(url: str, home: Path) -> Entry:
    """Check the server version and whether pgvector is installed, and return the database's size."""
    async with await psycopg.AsyncConnection.connect(url, connect_timeout=2) as connection:
        version = connection.info.server_version
        cursor = await connection.execute("select extversion from pg_extension where extname = 'vector'")
        vector = await cursor.fetchone()
        cursor = await connection.execute("select pg_database_size(current_database())")
        ((size,),) = await cursor.fetchall()
        kinds = await table_sizes(connection)
    found: Entry = {"ok": vector is not None, "version": f"{version // 10000}.{version % 10000}"}
    found |= size_and_growth(home, "postgres", url, size, kinds=kinds)
    if vector is None:
        return {**found, "hint": "pgvector is missing: run `create extension vector` in this database"}
    return {**found, "pgvector": vector[0]}


async def redis_(url: str, home: Path) -> Entry:
    """Check the server version and whether the server accepts writes, and return how much memory it uses."""
    async with redis.asyncio.Redis.from_url(url, socket_timeout=PATIENCE) as client:
        server = await client.info("server")
        persistence = await client.info("persistence")
        memory = await client.info("memory")
        kinds = await key_sizes(client)
    found: Entry = {"ok": True, "version": server["redis_version"]}
    found |= size_and_growth(home, "redis", url, memory["used_memory"], kinds=kinds)
    if persistence.get("aof_last_write_status", "ok") != "ok":
        return {**found, "ok": False, "hint": "Redis cannot write to its disk: free some space"}
    return found


async def providers(url: str) -> Entry:
    """Check whether the models that were called in the last hour can be called now."""
    async with redis.asyncio.Redis.from_url(url, socket_timeout=PATIENCE) as client:
        found = [each for each in await read_states(client) if not each.agent]
    if not found:
        return {"ok": True, "note": "no model was called in the last hour", "models": []}
    barred = [f"{each.model} is {each.state}: {each.because}" for each in found if each.state != "closed"]
    hint = {"hint": f"{'; '.join(barred)} (see `loom providers`)"} if barred else {}
    names = ", ".join(sorted({each.model for each in found}))
    return {"ok": not barred, "note": names, "models": [asdict(each) for each in found], **hint}


async def worker(settings: Settings, state: StackState) -> Entry:
    """Check whether a running worker is polling the task queue."""
    fresh = await live_pollers(await connect(settings), settings.task_queue)
    own = state.parts.get("worker")
    pids = {own.pid} if own and own.identity.alive() else set()
    pids |= {pid for identity in fresh if (pid := pid_here(identity)) is not None}
    if fresh:
        return {"ok": True, "pids": sorted(pids)}
    return {"ok": False, "pids": sorted(pids), "hint": f"no worker polls the task queue {settings.task_queue!r}"}


async def serve(state: StackState, home: Path) -> Entry:
    """Check whether the stack's HTTP service responds, and who may use it."""
    own = state.parts["serve"]
    status = await asyncio.to_thread(status_of, str(own.address), "/v1/me") if own.identity.alive() else None
    pids = [own.pid] if own.identity.alive() else []
    entry: Entry = {"ok": status is not None, "address": own.address, "pids": pids}
    if status is None and pids and time.time() - own.identity.started < STARTS_WITHIN:
        return {**entry, "note": "is starting"}
    if status is None:
        log = home / "logs" / "serve.log"
        return {**entry, "hint": f"the HTTP service does not respond: see `loom logs serve` ({log})"}
    who = "for everyone on this machine" if status == HTTPStatus.OK else "with a token (`loom tokens add`)"
    return {**entry, "note": who}


async def reported(settings: Settings) -> Entry:
    """Return the report of the newest running worker, and how this environment differs from it."""
    reports = []
    with suppress(StreamUnavailable):  # `doctor` says of Redis itself that it doesn't respond
        reports = await live_reports(settings)
    if not reports:
        return {}
    report = reports[0]
    roots = report.owner_bounds.roots if report.owner_bounds.roots is not None else report.bounds.roots or ()
    told = [
        f"app {report.app or 'none'}",
        _served(roots, report.bounds, report.owner_bounds),
        *([f"the newest of {len(reports)} workers"] if len(reports) > 1 else []),
    ]
    return {
        "version": report.version,
        "model": report.model.get("model"),
        "app": report.app,
        "workspaces": list(roots),
        "max_mode": report.bounds.max_mode.value,
        "note": "; ".join(told),
        "differs": differences(report, settings),
        **({"warning": warning} if (warning := different_approval_keys(reports)) else {}),
        "model_entry": report.model,
    }


async def runs(settings: Settings) -> Entry:
    """Check whether any run can't go on, because its workflow task fails again and again."""
    failing, shown = 0, []
    try:
        async with connected(settings) as client:  # failures may be encrypted
            failing = (await client.count_workflows(FAILING_RUNS)).count
            async for execution in client.list_workflows(FAILING_RUNS, limit=MOST_SHOWN if failing else 1):
                fault = await task_fault(client, execution)
                shown.append({"run_id": execution.id, "error": "" if fault is None else fault.error})
    except RPCError as error:
        if error.status is not RPCStatusCode.INVALID_ARGUMENT:
            raise
        return {"ok": True, "note": "this Temporal server doesn't tell which runs' workflow tasks fail"}
    if not failing:
        return {"ok": True, "failing": [], "note": "none needs a repair"}
    told = "; ".join(f"{each['run_id']}: {each['error']}" for each in shown)
    return {
        "ok": False,
        "failing": shown,
        "hint": f"the workflow tasks of {failing} runs fail ({told}): `loom repair RUN`, or `loom repair --all`",
    }


def exposure(settings: Settings, state: StackState) -> Entry:
    """Return what other users of the machine may do with the embedded server, if nothing keeps them out."""
    part = state.parts.get("temporal")
    is_own = part is not None and part.address == settings.temporal_address
    return {"warning": OPEN_TO_OTHERS} if is_own and not state.private and settings.require_signed == "off" else {}


def bounds(settings: Settings, state: StackState) -> Entry:
    """Return the workspaces and modes that a worker with these settings serves. `loom up` may have added workspaces."""
    roots = state.workspaces or tuple(map(str, settings.roots))
    owner = replace(settings.owner_bounds, roots=roots) if state.workspaces else settings.owner_bounds
    told = f"one started here serves {_served(roots, settings.bounds, owner)}{_proofs(settings)}"
    return {"workspaces": list(roots), "max_mode": settings.max_mode.value, "note": told}


def _served(roots: Sequence[str], bounds: Bounds, owner: Bounds) -> str:
    """Return in words what a worker serves. Its default bounds don't limit runs that are signed with its key."""
    anywhere = " (signed runs: any)" if owner.roots is None else ""
    signed = f" (signed runs: {owner.max_mode.value})" if owner.max_mode is not bounds.max_mode else ""
    return f"workspaces in {', '.join(roots)}{anywhere}; modes up to {bounds.max_mode.value}{signed}"


def _proofs(settings: Settings) -> str:
    """Return in words what a worker demands of approvals, or an empty string if they need no proof."""
    if settings.approval_keys is None:
        return ""
    key = settings.approval_key
    if key is None or not os.access(key, os.R_OK):
        return "; approvals must be proven"
    return (
        f"; approvals must be proven, but it could prove them itself: it can read {key}, which only `loom serve` needs"
    )


async def sandbox(settings: Settings) -> Entry:
    """Check whether all sandbox features work on this machine, and report which mechanism enforces each limit."""
    if settings.sandbox == "off":
        return {"ok": True, "program": None, "note": "switched off by LOOM_SANDBOX=off: tools run without isolation"}
    program = find_program()
    found, why_not = await asyncio.to_thread(
        find_sandbox,
        settings.sandbox,
        settings.private_paths,
        settings.sandbox_limits,
        settings.sandbox_readable,
        settings.sandbox_environment,
    )
    if found is None or program is None:
        return {"ok": False, "program": program, "hint": why_not}
    _, version = await _run(program, "--version")
    unseen = found.unseen_pythons(settings.workspace) if isinstance(found, Bubblewrap) else ()
    return {
        "ok": True,
        "program": program,
        "version": version.removeprefix("bubblewrap "),
        "held_by": enforcement(),
        **({"warning": "; ".join(f"{each.reason}: {each.advice()}" for each in unseen)} if unseen else {}),
    }


async def snapshots(settings: Settings) -> Entry:
    """Check whether workspaces can be saved before each change.

    Runs continue without snapshots unless the settings require them.
    """
    if settings.snapshots == "off":
        return {"ok": True, "note": "switched off by LOOM_SNAPSHOTS=off: changes by tools cannot be undone"}
    program = shutil.which("git")
    if program is None:
        hint = "snapshots need the `git` program: install it, or set LOOM_SNAPSHOTS=off"
        return {"ok": settings.snapshots != "required", "hint": hint}
    _, version = await _run(program, "--version")
    found: Entry = {"ok": True, "version": version.removeprefix("git version ")}
    size = await asyncio.to_thread(folder_size, settings.home / "snapshots")
    return found | size_and_growth(settings.home, "snapshots", str(settings.home), size) if size else found


async def mcp(settings: Settings) -> Entry:
    """Check whether the configured MCP servers respond. The check connects to them the same way a worker does."""
    from loom.activities.adapters.mcp.servers import McpServers  # noqa: PLC0415 - slow and rarely needed

    servers = read_servers(settings.mcp)
    async with McpServers(servers, environment=os.environ, first_wait=10) as manager:
        found = manager.report()
    told = "; ".join(_server_in_words(name, each) for name, each in found.items())
    silent = [server["hint"] for server in found.values() if not server["ok"]]
    hint = {"hint": f"{'; '.join(silent)}. Start it, or correct the `mcp` setting"} if silent else {}
    return {"ok": not silent, "note": told, "servers": found, **hint}


async def skills(settings: Settings) -> Entry:
    """List the skills that are available to runs in the configured workspace, and the skills that are skipped."""
    from loom.activities.adapters.skills.folders import SkillFolders  # noqa: PLC0415 - imports a YAML parser

    found = await SkillFolders(home=settings.skills_home, trusted=settings.trusted_folders).find(settings.workspace)
    left_out = [f"{each.path}: {each.why}" for each in found.problems if not each.is_warning]
    note = f"{len(found.skills)} found" + (f", {len(left_out)} skipped (see `loom skills list`)" if left_out else "")
    return {"ok": True, "note": note, "skills": [skill.name for skill in found.skills], "left_out": left_out}


def _server_in_words(name: str, entry: Entry) -> str:
    left_out = f", skipped: {', '.join(entry['refused'])}" if entry["refused"] else ""
    has = f"{entry['tools']} tool{'' if entry['tools'] == 1 else 's'}" if entry["ok"] else "does not answer"
    return f"{name}: {has}{left_out}"


def _tuning(database: Path, command: tuple[str, ...]) -> dict[str, bool]:
    """Return whether each tuned setting took effect.

    The journal mode is read from the database file. The running server doesn't report the
    other settings, so they are read from its command line.
    """
    with database.open("rb") as file:
        header = file.read(20)
    return {
        "journal_wal": header[18:20] == _WAL,
        "synchronous_normal": "synchronous=normal" in command,
        "poll_rates": all(rate in command for rate in TUNED_RATES),
        "fair_queues": FAIR_QUEUES in command,
    }


async def _run(*command: str) -> tuple[int, str]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=asyncio.subprocess.STDOUT)
    try:
        said, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    return process.returncode or 0, said.decode(errors="replace").strip()
