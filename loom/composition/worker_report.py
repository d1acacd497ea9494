"""Build a worker's report of itself, and compare the report with the settings of a command."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import blake2b
from importlib.metadata import version
from typing import Final

import structlog
from pydantic import AliasChoices, SecretStr

from loom.activities.adapters.models.providers import PREFIXES
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.worker_reports import EVERY, RedisWorkerReports
from loom.activities.ports import StreamUnavailable
from loom.composition.settings import Settings
from loom.composition.worker_catalog import catalog_of
from loom.composition.worker_parts import WorkerParts
from loom.domain.agents.inheritance import DEFAULT_AGENT
from loom.domain.agents.worker_report import WorkerReport
from loom.domain.core.messages import JsonObject
from loom.domain.core.model_names import DEMO

_log = structlog.get_logger("loom.worker")

ANSWER_WITHIN: Final = 5.0
"""Seconds within which Redis must have taken a report. A busy machine may need longer than a run may wait."""
_NOT_COMPARED: Final = frozenset(
    (
        *("temporal_address", "temporal_namespace", "temporal_api_key", "temporal_tls", "task_queue", "database_url"),
        *("temporal_tls_client_cert_path", "temporal_tls_client_key_path", "temporal_tls_server_ca_cert_path"),
        "temporal_tls_server_name",
        *("redis_url", "redis_server", "bus_url", "otlp_endpoint", "home", "signing_key", "private", "deployment"),
        *("build", "workspace", "metrics_host", "metrics_port", "log_level", "log_format", "skills_home"),
        *(
            "approval_key",
            "approval_keys",
            "approval_policy",
            "serve_port",
            "serve_origins",
            "serve_streams",
            "temporal_ui",
        ),
        *("oidc_issuer", "oidc_audience", "oidc_keys_url", "oidc_name_claim"),
        *("oidc_role_claim", "oidc_tenant_claim"),
    )
)
"""Settings that say where something is, and those of the HTTP service. A command may have different values and still
refer to the same worker. Their URLs may contain passwords, so the report leaves them out.
"""
_ONLY_IF_SET: Final = frozenset(("app", "workspaces"))
"""Settings that a running worker keeps unless a command names others."""
_HIDDEN: Final = frozenset(("mcp", "openai_base_url", "anthropic_base_url", "notify_command"))
"""Settings that may contain secrets."""


@asynccontextmanager
async def worker_reporting(
    parts: WorkerParts, settings: Settings, *, identity: str, task_queue: str
) -> AsyncIterator[None]:
    """Report the worker in Redis until the `async with` block ends. Without Redis, there are no reports."""
    if not settings.redis_url:
        yield
        return
    link = RedisConnection(settings.redis_url, cipher=parts.cipher, answer_within=ANSWER_WITHIN)
    reports = RedisWorkerReports(link, namespace=settings.temporal_namespace, task_queue=task_queue)
    report = first_report(parts, settings, identity=identity)
    await _tell(reports, report, parts, settings)
    telling = asyncio.create_task(_keep_telling(reports, report, parts, settings))
    try:
        yield
    finally:
        telling.cancel()
        with suppress(asyncio.CancelledError):
            await telling
        with suppress(StreamUnavailable):
            await reports.remove(identity)
        await link.aclose()


def first_report(parts: WorkerParts, settings: Settings, *, identity: str) -> WorkerReport:
    """Return what doesn't change while the worker runs."""
    registry, now = parts.registry, datetime.now(UTC)
    return WorkerReport(
        identity=identity,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=version("loom-agents"),
        started_at=now,
        told_at=now,
        app=settings.app,
        model=model_entry(settings, tuple(registry.providers)),
        settings=dict(told_settings(settings)),
        bounds=parts.bounds,
        owner_bounds=parts.owner_bounds,
        prefixes=(*PREFIXES, *registry.providers),
        agents=tuple(sorted({DEFAULT_AGENT, *registry.agents})),
        crews=tuple(sorted(registry.crews)),
        tools=tuple(sorted(registry.tools)),
        servers=tuple(server.name for server in registry.mcp_servers),
        approval_keys=tuple(sorted(parts.approval_keys.ids)) if parts.approval_keys is not None else (),
    )


def model_entry(settings: Settings, registered: Collection[str] = ()) -> JsonObject:
    """Return whether the settings contain all values that a call to the default model needs, as `loom doctor` shows it.

    `registered` are the prefixes of the app's own providers.
    """
    name = settings.model
    ways = "set LOOM_MODEL to openai:NAME (with OPENAI_API_KEY), anthropic:NAME (with ANTHROPIC_API_KEY) or demo"
    if name is None:
        return {"ok": False, "model": None, "hint": f"no model is set: {ways}"}
    if name == DEMO:
        return {"ok": True, "model": name, "note": "a rule-based stand-in, not a language model"}
    provider, _, rest = name.partition(":")
    if rest and provider in registered:
        return {"ok": True, "model": name, "note": f"the {provider!r} provider of {settings.app}"}
    if provider not in PREFIXES or not rest:
        return {"ok": False, "model": name, "hint": f"{name!r} is not a model that Loom knows: {ways}"}
    account = provider.partition("-")[0]
    if not (getattr(settings, f"{account}_api_key") or getattr(settings, f"{account}_base_url")):
        return {"ok": False, "model": name, "hint": f"no key for {name}: set {account.upper()}_API_KEY"}
    return {"ok": True, "model": name}


def differences(report: WorkerReport, settings: Settings) -> list[str]:
    """Return a sentence for each setting that a worker started with these settings would have differently."""
    here = dict(told_settings(settings))
    return [
        _difference(name, here.get(name), report.settings.get(name))
        for name in Settings.model_fields
        if name not in _NOT_COMPARED and here.get(name) != report.settings.get(name)
        if name not in _ONLY_IF_SET or name in settings.model_fields_set
    ]


def different_approval_keys(reports: Sequence[WorkerReport]) -> str | None:
    """Return a warning if workers of one queue don't demand proofs of approvals with the same keys, or None."""
    if len({report.approval_keys for report in reports}) <= 1:
        return None
    told = "; ".join(f"{each.identity}: {', '.join(each.approval_keys) or 'no proof'}" for each in reports)
    return (
        f"the workers demand proofs of approvals with different keys ({told}), and a call may run on any of them: start"
        " all with the same LOOM_APPROVAL_KEYS"
    )


def _difference(name: str, here: str | None, there: str | None) -> str:
    variable = variable_of(name)
    if here is not None and there is not None and _is_hidden(name):
        return f"{variable} here differs from the worker's"
    return f"{variable} is {_shown(name, here)} here, but {_shown(name, there)} in the worker"


def variable_of(field: str) -> str:
    """Return the environment variable of a setting."""
    alias = Settings.model_fields[field].validation_alias
    return str(alias.choices[0]) if isinstance(alias, AliasChoices) else f"LOOM_{field.upper()}"


async def _keep_telling(
    reports: RedisWorkerReports, report: WorkerReport, parts: WorkerParts, settings: Settings
) -> None:
    while True:
        await asyncio.sleep(EVERY)
        await _tell(reports, report, parts, settings)


async def _tell(reports: RedisWorkerReports, report: WorkerReport, parts: WorkerParts, settings: Settings) -> None:
    """Write the report with the skills that are on disk and the tools that MCP servers offer now."""
    looked_at, tools = datetime.now(UTC), [tool for _, tool in sorted(parts.tools.items())]
    try:
        catalog = await asyncio.to_thread(catalog_of, parts.registry, settings, tools)
        skills = None if settings.trusted_folders else tuple(each["name"] for each in catalog.skills["skills"])
        await reports.write(replace(report, told_at=looked_at, skills=skills), catalog)
    except StreamUnavailable as error:
        _log.debug("worker_not_reported", why=str(error))
    except Exception as error:  # noqa: BLE001 - a folder that can't be read must end neither the worker nor its reports
        _log.error("worker_not_reported", exc_info=error)


def told_settings(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield each setting that differs from its default, as JSON."""
    dumped = settings.model_dump(mode="json")
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        if name in _NOT_COMPARED or value == field.get_default(call_default_factory=True):
            continue
        if _is_hidden(name):
            plain = value.get_secret_value() if isinstance(value, SecretStr) else json.dumps(dumped[name])
            yield name, blake2b(plain.encode(), digest_size=6, key=b"loom worker").hexdigest()
        else:
            yield name, json.dumps(dumped[name], ensure_ascii=False)


def _is_hidden(name: str) -> bool:
    return name in _HIDDEN or "SecretStr" in str(Settings.model_fields[name].annotation)


def _shown(name: str, value: str | None) -> str:
    if value is None:
        return "not set"
    return "set" if _is_hidden(name) else value.strip('"')
