"""What encrypts: the codec of Temporal's payloads and the cipher of the stores, which share the keys."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temporalio.client import Interceptor
from temporalio.converter import PayloadCodec

from loom.activities.adapters.encryption.codec import EncryptionCodec, RefuseEncrypted
from loom.activities.adapters.postgres.database import Database
from loom.activities.encryption import PLAIN, Cipher
from loom.composition.client_settings import ClientSettings

if TYPE_CHECKING:
    from loom.activities.adapters.encryption.data_keys import DataKeys


@dataclass(frozen=True)
class Encryption:
    """The parts of one process that encrypt. Its connection to Postgres serves one event loop."""

    cipher: Cipher = PLAIN
    codec: PayloadCodec = RefuseEncrypted()  # noqa: RUF009 - it has no state
    keys: "DataKeys | None" = None
    """None if encryption is off."""
    interceptors: Sequence[Interceptor] = ()
    database: Database | None = None

    async def aclose(self) -> None:
        """Close the connection to the keys of tenants."""
        if self.database is not None:
            await self.database.aclose()


def encryption_from(settings: ClientSettings) -> Encryption:
    """Return what encrypts with the keys in the settings, or what refuses encrypted data if there are none. The caller
    must close it.

    Raises BadRequest if the file of the keys isn't usable.
    """
    return encryption_with(settings.encryption_keys, settings.database_url)


def encryption_with(file: Path | None, url: str | None) -> Encryption:
    """Return the same for a file of keys and a database. Without a database, tenants have no keys of their own."""
    if file is None:
        return Encryption()
    # Importing the library takes time and 6 MB, and most processes have no keys.
    from loom.activities.adapters.encryption.cipher import AesGcmCipher  # noqa: PLC0415
    from loom.activities.adapters.encryption.client import TenantOfRun  # noqa: PLC0415
    from loom.activities.adapters.encryption.data_keys import DataKeys  # noqa: PLC0415
    from loom.activities.adapters.encryption.key_ring import KeyRing  # noqa: PLC0415
    from loom.activities.adapters.encryption.run_tenants import RunTenants  # noqa: PLC0415

    database = Database(url, max_connections=2, name="loom-keys") if url else None
    keys, runs = DataKeys(KeyRing(file), database), RunTenants()
    return Encryption(
        cipher=AesGcmCipher(keys, runs),
        codec=EncryptionCodec(keys, runs),
        keys=keys,
        interceptors=(TenantOfRun(keys, runs),),
        database=database,
    )


@asynccontextmanager
async def opened_database(settings: ClientSettings, **options: Any) -> AsyncIterator[Database]:
    """Open the settings' database, whose values are encrypted if the settings say so, for one command or one client."""
    assert settings.database_url is not None  # noqa: S101 - callers have said what is missing
    encryption = encryption_from(settings)
    database = Database(settings.database_url, cipher=encryption.cipher, **options)
    try:
        yield database
    finally:
        await database.aclose()
        await encryption.aclose()
