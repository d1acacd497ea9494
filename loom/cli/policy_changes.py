"""Record in the audit log what commands change about who may do what."""

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any

from loom.activities.adapters.postgres.database import Database
from loom.activities.ports import StoreUnavailable
from loom.cli.arguments import user_name
from loom.cli.logs import silence
from loom.cli.output import print_notice
from loom.composition.audit_log import audit_log
from loom.composition.load_settings import load_settings
from loom.domain.audit.entries import Act, AuditEntry, Source, content_digest


def record_change(act: Act, content: Any, *, subject: str = "", tenant: str = "") -> None:
    """Record that the user of this command has changed something. A change that can't be recorded is reported."""
    settings = load_settings()
    if settings.database_url is None or not settings.audits:
        return
    silence()
    entry = AuditEntry(
        key=f"command {token_hex(16)}",
        at=datetime.now(UTC),
        act=act,
        source=Source.COMMAND,
        by=user_name(),
        tenant=tenant,
        subject=subject,
        digest=content_digest(content),
    )
    database = Database(settings.database_url, max_connections=1, name="loom-audit")

    async def append() -> None:
        async with aclosing(database):
            if (log := audit_log(settings, database)) is not None:
                await log.append([entry])

    try:
        asyncio.run(append())
    except StoreUnavailable as error:
        print_notice(f"this change is missing from the audit log: {error}")
