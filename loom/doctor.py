"""`loom doctor`: check all dependencies of a run concurrently and report the results as one JSON value.

The overall `ok` covers temporal, postgres, redis, sandbox and snapshots. It also covers the worker, unless the stack
was started without one. The model, the providers, the MCP servers, the skills, the HTTP service and runs that need a
repair don't affect `ok`, because a stack can run without them.
"""

import asyncio
from pathlib import Path
from typing import Any

from loom import doctor_checks as checks
from loom.composition.settings import Settings
from loom.composition.worker_report import model_entry
from loom.doctor_checks import Entry
from loom.stack.state import StackState

MCP_PATIENCE = 12.0
"""Seconds to wait for MCP servers. `npx` or `uvx` may have to download a server first."""


async def examine(settings: Settings, state: StackState, home: Path) -> dict[str, Any]:
    """Return the report that `loom doctor --json` prints: `{"ok", "parts": {…}}`."""
    start = "start it with `loom up`, or set {}"
    names = ("temporal", "postgres", "redis", "worker", "sandbox", "snapshots")
    found = await asyncio.gather(
        checks.in_time(checks.temporal(settings, state, home), hint=f"no Temporal: {start.format('TEMPORAL_ADDRESS')}"),
        _postgres(settings.database_url, home, f"no Postgres: {start.format('LOOM_DATABASE_URL')}"),
        _redis(settings.redis_url, home, f"no Redis: {start.format('LOOM_REDIS_URL')}"),
        checks.in_time(checks.worker(settings, state), hint="no worker responds"),
        checks.in_time(checks.sandbox(settings), hint="bubblewrap does not respond"),
        checks.in_time(checks.snapshots(settings), hint="git does not respond"),
    )
    parts: dict[str, Entry] = dict(zip(names, found, strict=True))
    if settings.mcp:
        hint = "the MCP servers do not respond"
        parts["mcp"] = await checks.in_time(checks.mcp(settings), hint=hint, patience=MCP_PATIENCE)
    if settings.redis_url and parts["redis"]["ok"]:
        parts["providers"] = await checks.in_time(checks.providers(settings.redis_url), hint="Redis does not respond")
    if parts["temporal"]["ok"]:
        parts["runs"] = await checks.in_time(checks.runs(settings), hint="Temporal does not respond")
    skills = await checks.in_time(checks.skills(settings), hint="the skills cannot be read")
    if skills.get("skills") or skills.get("left_out"):
        parts["skills"] = skills
    address = settings.temporal_address if "temporal_address" in settings.model_fields_set else None
    parts["temporal"] = {"ok": False, "address": address, "version": None, "ui": None} | parts["temporal"]
    parts["temporal"] |= checks.exposure(settings, state)
    told = (
        await checks.in_time(checks.reported(settings), hint="Redis does not respond") if parts["worker"]["ok"] else {}
    )
    if told.get("ok") is False:
        told = {}  # the worker runs, although nothing reports it
    model = told.pop("model_entry", None)
    parts["worker"] = _worker(parts["worker"], settings, state, home) | told
    wanted = set(names) if worker_wanted(settings, state) else set(names) - {"worker"}
    if "serve" in state.parts:
        parts["serve"] = await checks.in_time(checks.serve(state, home), hint="the HTTP service does not respond")
    parts["model"] = model or _model_here(settings, has_worker=parts["worker"]["ok"])
    return {"ok": all(parts[name]["ok"] for name in wanted), "parts": parts}


def worker_wanted(settings: Settings, state: StackState) -> bool:
    """Return whether a worker is expected. Only an embedded stack that was started with `--no-worker` expects none."""
    own = state.parts.get("temporal")
    return state.worker_wanted or own is None or own.address != settings.temporal_address


def with_addresses_of(settings: Settings, state: StackState) -> Settings:
    """Return the settings with the addresses of this stack, as reported by `loom up`."""
    address = {name: part.address for name, part in state.parts.items()}
    return settings.model_copy(
        update={
            "temporal_address": address["temporal"],
            "database_url": address["postgres"],
            "redis_url": address["redis"],
            "temporal_api_key": None,
            "temporal_tls": False,
            "temporal_tls_client_cert_path": None,
            "temporal_tls_client_key_path": None,
            "temporal_tls_server_ca_cert_path": None,
        }
    )


async def _postgres(url: str | None, home: Path, hint: str) -> Entry:
    found = await checks.in_time(checks.postgres(url, home), hint=hint) if url else {"ok": False, "hint": hint}
    return {"ok": False, "address": url, "version": None} | found


async def _redis(url: str | None, home: Path, hint: str) -> Entry:
    found = await checks.in_time(checks.redis_(url, home), hint=hint) if url else {"ok": False, "hint": hint}
    return {"ok": False, "address": url, "version": None} | found


def _model_here(settings: Settings, *, has_worker: bool) -> Entry:
    """Return the model that these settings name. The running worker, if there is one, doesn't report its own."""
    entry = dict(model_entry(settings))
    if settings.app and settings.model and ":" in settings.model and not entry["ok"]:
        entry["hint"] = f"{entry['hint']}, unless {settings.app} registers its provider"
    if not has_worker:
        return entry
    return {
        **entry,
        "note": f"{entry['note']}; of this command, not of the worker"
        if "note" in entry
        else "of this command, not of the worker",
    }


def _worker(found: Entry, settings: Settings, state: StackState, home: Path) -> Entry:
    entry: Entry = {"ok": False, "pids": [], **checks.bounds(settings, state)} | found
    if entry["ok"]:
        return entry
    if not worker_wanted(settings, state):
        return {**entry, "hint": "the stack was started with --no-worker: run `loom worker` or `loom up`"}
    if "worker" in state.parts:
        next_one = "Loom is starting one" if state.supervised() else "start one with `loom up`"
        return {**entry, "hint": f"{entry['hint']}: {next_one}, and see `loom logs` ({home / 'logs' / 'worker.log'})"}
    if "temporal_address" not in settings.model_fields_set:
        return {**entry, "hint": "no worker: start one with `loom up`"}
    return {**entry, "hint": f"{entry['hint']}: start one with `loom up` or `loom worker`"}
