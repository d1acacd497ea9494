"""Open the audit log, as the settings say."""

from loom.activities.adapters.postgres.audit import PostgresAuditLog
from loom.activities.adapters.postgres.database import Database
from loom.composition.settings import Settings


def audit_log(settings: Settings, database: Database) -> PostgresAuditLog | None:
    """Return the audit log in this database, or None if the settings turn it off.

    Raises BadRequest if the file of encryption keys isn't usable.
    """
    return opened_log(settings, database) if settings.audit == "on" else None


def opened_log(settings: Settings, database: Database) -> PostgresAuditLog:
    """Return the audit log in this database, to read it. Raises BadRequest as `audit_log` does."""
    if settings.encryption_keys is None:
        return PostgresAuditLog(database)
    from loom.activities.adapters.encryption.key_ring import KeyRing  # noqa: PLC0415 - takes time and 6 MB

    return PostgresAuditLog(database, KeyRing(settings.encryption_keys))
