"""Run the HTTP service: bind its address, serve until it is told to stop, and let all watchers end."""

import asyncio
import getpass
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from ipaddress import ip_address
from typing import Final

import structlog
import uvicorn
from fastapi import FastAPI

from loom.activities.adapters.postgres.access import PostgresCallApprovals, PostgresTokens
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.signing.approval_key_files import read_approval_key
from loom.activities.ports import StoreUnavailable, StreamUnavailable
from loom.client import LoomClient
from loom.composition.audit_log import audit_log
from loom.composition.encryption import opened_database
from loom.composition.live_workers import live_catalogs
from loom.composition.settings import Settings
from loom.domain.audit.entries import Act
from loom.domain.core.errors import BadRequest
from loom.serve.access.approval_policy import ApprovalPolicy, read_policy
from loom.serve.access.approvals import Approvals
from loom.serve.access.audit_trail import AuditTrail
from loom.serve.access.callers import Callers
from loom.serve.access.local_user import LocalUser
from loom.serve.access.openid import Issuer, OpenId
from loom.serve.access.tokens import AccessTokens
from loom.serve.app import build_app
from loom.serve.caller_runs import Service
from loom.serve.connections import Connection
from loom.serve.faces.mcp_server import serve_stdio
from loom.serve.run_streams import RunStreams
from loom.serve.task_summaries import TaskSummaries

_log = structlog.get_logger("loom.serve")

STALLED_AFTER: Final = 60.0
"""Seconds after which the operating system closes a connection whose peer takes nothing."""
SEND_BUFFER: Final = 256 * 1024
"""The most bytes that the operating system holds for a connection whose peer takes nothing."""
BACKLOG: Final = 2048
GRACE: Final = 5
"""Seconds that requests have to finish when the service stops."""


class Server(uvicorn.Server):
    """A server whose watchers end when it stops. Otherwise, it would wait for the ends of their runs."""

    def __init__(self, app: FastAPI, streams: RunStreams) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                log_config=None,
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=GRACE,
                server_header=False,
                ws="none",
            )
        )
        self._streams = streams

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `serve`. The base class would raise them again at the end, which looks like a failure."""
        yield

    def stop(self) -> None:
        """Stop soon."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See the base class."""
        self._streams.close()
        await super().shutdown(sockets)


@asynccontextmanager
async def service_for(settings: Settings) -> AsyncIterator[Service]:
    """Yield the parts that all requests share.

    Raises UnreachableError if the Temporal server doesn't respond, and BadRequest if the approval policy or the
    approval key is invalid.
    """
    if settings.approval_key is not None:
        read_approval_key(settings.approval_key)
    policy, digest = read_policy(settings.approval_policy) if settings.approval_policy else (ApprovalPolicy(), "")
    async with LoomClient.connected(settings) as client, _database(settings) as database:
        store = PostgresCallApprovals(database) if database else None
        audit = AuditTrail(audit_log(settings, database) if database else None)
        if settings.approval_policy:
            owner = LocalUser(getpass.getuser()).person
            audit.add(Act.SET_APPROVAL_POLICY, {"sha256": digest}, caller=owner, subject=settings.approval_policy.name)
        streams = RunStreams(client)
        try:
            async with audit.written():
                yield Service(
                    client=client,
                    settings=settings,
                    streams=streams,
                    approvals=Approvals(client, policy, store, audit),
                    tasks=TaskSummaries(client),
                    tokens=AccessTokens(PostgresTokens(database)) if database else None,
                    audit=audit,
                )
        finally:
            await streams.aclose()


def callers_of(service: Service, *, is_local: bool, insecure: bool = False, host: str = "") -> Callers:
    """Return who may use the service. `is_local` says that it listens on the loopback interface only, and `host` is the
    name at which it listens.
    """
    settings = service.settings
    issuer = None
    if settings.oidc_issuer and settings.oidc_audience:
        issuer = Issuer(
            url=settings.oidc_issuer,
            audience=settings.oidc_audience,
            keys_url=settings.oidc_keys_url,
            name_claim=settings.oidc_name_claim,
            role_claim=settings.oidc_role_claim,
            tenant_claim=settings.oidc_tenant_claim,
        )
    is_open = insecure or (is_local and not _keeps_others_out(settings))
    names = (host, socket.gethostname())
    local = LocalUser(getpass.getuser(), hosts=names, origins=settings.serve_origins) if is_open else None
    return Callers(tokens=service.tokens, openid=OpenId(issuer) if issuer else None, local=local)


def _keeps_others_out(settings: Settings) -> bool:
    """Return whether other users of this machine can't start runs themselves. The service could do it for them: it
    reaches Temporal through the socket, and signs what it sends.
    """
    return settings.require_signed == "on" or settings.temporal_address.startswith("unix:")


async def serve(settings: Settings, *, host: str, port: int, insecure: bool) -> None:
    """Serve until a signal arrives. Raises BadRequest if the address can't be used, or would be open to everybody."""
    with bound(host, port) as listening:
        is_local = ip_address(listening.getsockname()[0]).is_loopback
        async with service_for(settings) as service:
            callers = callers_of(service, is_local=is_local, insecure=insecure, host=host)
            await _tell_who_may_call(callers, settings, is_local=is_local, insecure=insecure)
            await _tell_dead_rules(service.approvals.policy, settings)
            app = build_app(service, callers)
            server = Server(app, service.streams)
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, server.stop)
            _log.info("serving", address=address_of(listening))
            await server.serve([listening])


async def serve_mcp_over_stdio(settings: Settings) -> None:
    """Serve an MCP client that has started this process. It has the rights of the person who runs it, as the command
    line has.
    """
    async with service_for(settings) as service:
        await serve_stdio(service, LocalUser(getpass.getuser()).person)


async def _tell_who_may_call(callers: Callers, settings: Settings, *, is_local: bool, insecure: bool) -> None:
    try:
        is_open = await callers.is_open()
    except StoreUnavailable as error:
        _log.warning("tokens_not_read", reason=str(error), effect="requests are refused until the database responds")
        return
    if is_open and not is_local and not insecure:
        raise BadRequest(
            "--host: there are no tokens, so everyone who can reach this address would have full access. Create a token"
            " with `loom tokens add`, set LOOM_OIDC_ISSUER, listen on 127.0.0.1, or use --insecure",
            field="--host",
        )
    if is_open and not insecure and _keeps_others_out(settings):
        why = "LOOM_REQUIRE_SIGNED or --private keeps other users of this machine out"
        _log.warning("no_tokens", effect="every request is refused", why=why, make_one_with="loom tokens add")
    elif is_open:
        who = "everybody on this machine" if is_local else "everybody who reaches this address"
        _log.warning("no_tokens", may_do_everything=who, close_with="loom tokens add")


async def _tell_dead_rules(policy: ApprovalPolicy, settings: Settings) -> None:
    """Warn of rules of the policy that are probably misspelt. Without a running worker, nobody knows."""
    with suppress(StreamUnavailable):
        catalogs = [catalog for _, catalog in await live_catalogs(settings)] if policy.rules else []
        tools = {str(tool["name"]) for catalog in catalogs for tool in catalog.tools}
        agents = {str(agent["name"]) for catalog in catalogs for agent in catalog.agents}
        for place, pattern in policy.unmatched(tools=tools, agents=agents) if catalogs else ():
            _log.warning("approval_rule_unmatched", rule=place, pattern=pattern, why="no running worker has one")


@asynccontextmanager
async def _database(settings: Settings) -> AsyncIterator[Database | None]:
    if not settings.database_url:
        yield None
        return
    async with opened_database(settings, max_connections=4, name="loom-serve") as database:
        yield database


def bound(host: str, port: int, *, stalled_after: float = STALLED_AFTER) -> socket.socket:
    """Return a socket that is bound to this address. Raises BadRequest if that isn't possible."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.create_server(address[:2], family=family, backlog=BACKLOG, reuse_port=False)
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (while")[0]  # Python repeats the address there
        raise BadRequest(
            f"--host and --port: cannot listen at {host}:{port} ({why}); choose others",
            field="port",
        ) from None
    # Connections inherit these. A peer that only acknowledges probes is given up, too.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    if sys.platform == "linux":
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(stalled_after * 1000))
    return listening


def address_of(listening: socket.socket) -> str:
    """Return the URL of a bound socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
