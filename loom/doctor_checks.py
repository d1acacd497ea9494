"""The checks that `loom doctor` runs, one for each component.

The checks run concurrently and take at most two seconds.

Each check returns a report entry, which contains `ok` and facts such as the version. If the check failed, the entry
also contains a `hint` that suggests a fix.
"""

import asyncio
import os
import shutil
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psycopg
import redis.asyncio
from redis.exceptions import RedisError
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    GetSystemInfoRequest,
)
from temporalio.service import RPCError

from loom.activities.adapters.redis.permits import read_states
from loom.activities.adapters.sandbox.bubblewrap import enforcement, find_program, find_sandbox
from loom.activities.adapters.temporal.errors import unconnected
from loom.composition.settings import Settings
from loom.composition.temporal_connection import connect
from loom.domain.tools.mcp_servers import read_servers
from loom.stack.home import ROOM_TO_GO_ON
from loom.stack.services import FAIR_QUEUES, TUNED_RATES
from loom.stack.state import StackState, command_line, lived_at

Entry = dict[str, Any]
PATIENCE = 2.0
POLL = 70.0  # seconds; a long poll that receives no task ends after one minute, and the worker then polls again
_WAL = b"\x02\x02"  # bytes 18 and 19 of a SQLite file in WAL mode


async def in_time(question: Awaitable[Entry], *, hint: str, patience: float = PATIENCE) -> Entry:
    """Return the check's entry. If the check fails or exceeds `patience` seconds, return an entry with the hint."""
    try:
        return await asyncio.wait_for(question, patience)
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
    tuning = _tuning(home / "temporal.db", command_line(part.pid))
    found: Entry = {"ok": all(tuning.values()), "version": info.server_version, "ui": state.ui, "tuning": tuning}
    if shutil.disk_usage(home).free < ROOM_TO_GO_ON:
        return {**found, "ok": False, "hint": f"the disk that contains {home} is full: free some space"}
    if not found["ok"]:
        found["hint"] = (
            "the server runs without its tuned settings, so each turn takes longer: run `loom down`, then `loom up`"
        )
    return found


async def postgres(url: str) -> Entry:
    """Check the server version and whether pgvector is installed."""
    async with await psycopg.AsyncConnection.connect(url, connect_timeout=2) as connection:
        version = connection.info.server_version
        cursor = await connection.execute("select extversion from pg_extension where extname = 'vector'")
        vector = await cursor.fetchone()
    found: Entry = {"ok": vector is not None, "version": f"{version // 10000}.{version % 10000}"}
    if vector is None:
        return {**found, "hint": "pgvector is missing: run `create extension vector` in this database"}
    return {**found, "pgvector": vector[0]}


async def redis_(url: str) -> Entry:
    """Check the server version and whether the server accepts writes."""
    async with redis.asyncio.Redis.from_url(url, socket_timeout=PATIENCE) as client:
        server = await client.info("server")
        persistence = await client.info("persistence")
    found: Entry = {"ok": True, "version": server["redis_version"]}
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
    client = await connect(settings)
    queue = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=settings.temporal_namespace,
            task_queue=TaskQueue(name=settings.task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
    )
    own = state.parts.get("worker")
    pids = {own.pid} if own and own.identity.alive() else set()
    fresh = [poller for poller in queue.pollers if _lives(poller)]
    pids |= {pid for poller in fresh if (pid := _pid_here(poller.identity)) is not None}
    if fresh:
        return {"ok": True, "pids": sorted(pids)}
    return {"ok": False, "pids": sorted(pids), "hint": f"no worker polls the task queue {settings.task_queue!r}"}


def bounds(settings: Settings, state: StackState) -> Entry:
    """Return the workspaces and modes that a worker with these settings serves. `loom up` may have added workspaces."""
    roots = state.workspaces or tuple(map(str, settings.roots))
    told = f"workspaces in {', '.join(roots)}; modes up to {settings.max_mode.value}"
    return {"workspaces": list(roots), "max_mode": settings.max_mode.value, "note": told}


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
    return {"ok": True, "program": program, "version": version.removeprefix("bubblewrap "), "held_by": enforcement()}


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
    return {"ok": True, "version": version.removeprefix("git version ")}


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


def model(settings: Settings) -> Entry:
    """Check whether the settings contain all values that a call to the configured model needs."""
    name = settings.model
    ways = "set LOOM_MODEL to openai:NAME (with OPENAI_API_KEY), anthropic:NAME (with ANTHROPIC_API_KEY) or demo"
    if name is None:
        return {"ok": False, "model": None, "hint": f"no model is set: {ways}"}
    if name == "demo":
        return {"ok": True, "model": name, "note": "a rule-based stand-in, not a language model"}
    provider, _, rest = name.partition(":")
    reachable: Mapping[str, Callable[[], bool]] = {
        "openai": lambda: bool(settings.openai_api_key or settings.openai_base_url),
        "anthropic": lambda: bool(settings.anthropic_api_key or settings.anthropic_base_url),
    }
    if rest and provider not in reachable and settings.app:
        return {
            "ok": True,
            "model": name,
            "note": f"needs the {provider!r} provider, which {settings.app} has to register",
        }
    if provider not in reachable or not rest:
        return {"ok": False, "model": name, "hint": f"{name!r} is not a model that Loom knows: {ways}"}
    if not reachable[provider]():
        return {"ok": False, "model": name, "hint": f"no key for {name}: set {provider.upper()}_API_KEY"}
    return {"ok": True, "model": name}


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


def _lives(poller: PollerInfo) -> bool:
    """Return whether the poller is still running. Temporal lists dead pollers for several minutes.

    If the poller runs on this machine, its process is checked. Otherwise, the time of its last poll is checked.
    """
    pid, seen = _pid_here(poller.identity), poller.last_access_time.ToSeconds()
    return lived_at(pid, seen) if pid is not None else time.time() - seen < POLL


def _pid_here(identity: str) -> int | None:
    """Return the process ID from an identity such as `pid@host`. Return None if the host isn't this machine."""
    pid, _, host = identity.partition("@")
    return int(pid) if pid.isdigit() and host == socket.gethostname() else None


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
