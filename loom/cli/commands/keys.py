"""The `keys` commands, which manage the files of keys and the tenants' keys in Postgres."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import typer
from rich.table import Table

from loom.activities.adapters.encryption.data_keys import DataKeys
from loom.activities.adapters.encryption.key_ring import StackKey, new_key, read_keys, write_keys
from loom.activities.adapters.signing.approval_key_files import create_approval_key, public_file
from loom.activities.ports import StoreUnavailable
from loom.cli.arguments import Json, local_path, new_app
from loom.cli.logs import silence
from loom.cli.output import console, one_line, print_json, print_notice
from loom.cli.policy_changes import record_change
from loom.composition.encryption import encryption_from
from loom.composition.load_settings import load_settings
from loom.composition.settings import Settings
from loom.domain.audit.entries import Act
from loom.domain.core.errors import BadRequest, UnreachableError

T = TypeVar("T")

File: TypeAlias = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="File that contains the keys; overrides LOOM_ENCRYPTION_KEYS."),
]

ApprovalFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="File for the private key; overrides LOOM_APPROVAL_KEY."),
]

app = new_app("keys", "Create, list and rotate the keys that encrypt data, and create one that proves approvals.")


@app.command()
def new(file: File = None, as_json: Json = False) -> None:
    """Create the file with a first key. Keep a copy of it: without it, nobody can read the encrypted data.

    Without --file and LOOM_ENCRYPTION_KEYS, the file is encryption.keys in LOOM_HOME.
    """
    settings = load_settings()
    path = _named(file) or settings.encryption_keys or settings.home / "encryption.keys"
    if path.exists():
        raise BadRequest(f"{path} exists already: `loom keys rotate` adds a key", field="--file")
    key = _written(path, [new_key()])
    record_change(Act.ADD_KEY, {"file": str(path)}, subject=key.id)
    if as_json:
        print_json({"file": str(path), "key": key.id})
    else:
        print_notice(f"{path} has the key {key.id}. Set LOOM_ENCRYPTION_KEYS={path} for all workers and clients.")


@app.command()
def approval(file: ApprovalFile = None, as_json: Json = False) -> None:
    """Create a private key that proves approvals, and beside it a file with its public key for the workers.

    Without --file and LOOM_APPROVAL_KEY, the private key is approval.key in LOOM_HOME. Keep it where neither workers
    nor agents can read it.
    """
    settings = load_settings()
    path = _named(file) or settings.approval_key or settings.home / "approval.key"
    key, public = create_approval_key(path), public_file(path)
    record_change(Act.ADD_KEY, {"file": str(path)}, subject=key.id)
    if as_json:
        print_json({"file": str(path), "public": str(public), "key": key.id})
        return
    print_notice(
        f"{path} has the private key {key.id}: set LOOM_APPROVAL_KEY={path} for `loom serve`, or for people's own"
        f" clients. {public} has the public key: set LOOM_APPROVAL_KEYS to it, or append it to the workers' file."
    )


@app.command()
def rotate(
    file: File = None,
    tenant: Annotated[str | None, typer.Option(metavar="T", help="Give only this tenant a new key.")] = None,
    as_json: Json = False,
) -> None:
    """Add a key that encrypts new data. Older keys still decrypt older data.

    Running processes use the older key until they read data that the new key has encrypted. If you have several
    machines, copy the file to all of them before any of them uses it.
    """
    settings = load_settings()
    if tenant is not None:
        made = _with_keys(settings, lambda keys: _of_tenants(keys).rotate(tenant))
        told = f"The tenant {tenant} has the new key {made}."
    else:
        path = _named(file) or _path(settings)
        made = _written(path, [new_key(), *read_keys(path)]).id
        told = f"{path} has the new key {made}. Run `loom keys rewrap` once all workers have the file."
    record_change(Act.ADD_KEY, {"tenant": tenant}, subject=made, tenant=tenant or "")
    if as_json:
        print_json({"key": made, "tenant": tenant})
    else:
        print_notice(told)


@app.command()
def rewrap(as_json: Json = False) -> None:
    """Encrypt the tenants' keys in Postgres with the newest key of the file, so that they no longer need older ones."""
    count = _with_keys(load_settings(), lambda keys: _of_tenants(keys).wrap_again())
    record_change(Act.REWRAP_KEYS, {"rewrapped": count})
    if as_json:
        print_json({"rewrapped": count})
    else:
        print_notice(f"{count} keys are now encrypted with the newest key.")


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the keys in the file, newest first, and the tenants' keys. The list contains no secrets."""
    settings = load_settings()
    stack = [key.id for key in read_keys(_path(settings))]
    tenants = _with_keys(settings, lambda keys: keys.listed())
    if as_json:
        print_json(
            {
                "file": str(settings.encryption_keys),
                "keys": stack,
                "tenants": [
                    {"tenant": k.tenant, "key": k.id, "wrapped_by": k.wrapped_by, "forgotten_at": k.forgotten_at}
                    for k in tenants
                ],
            }
        )
        return
    table = Table("key", "of", "state", box=None, pad_edge=False)
    for number, name in enumerate(stack):
        table.add_row(name, "the stack", "decrypts" if number else "encrypts")
    for key in tenants:
        state = f"encrypted with {key.wrapped_by}" if key.forgotten_at is None else f"forgotten at {key.forgotten_at}"
        table.add_row(key.id, f"tenant {one_line(key.tenant)}", state)
    console().print(table)


def _with_keys(settings: Settings, work: Callable[[DataKeys], Awaitable[T]]) -> T:
    """Call `work` with the keys in the settings. Raises BadRequest if encryption is off, and UnreachableError."""
    _path(settings)
    silence()

    async def opened() -> T:
        encryption = encryption_from(settings)
        assert encryption.keys is not None  # noqa: S101 - the settings name a file
        async with aclosing(encryption):
            return await work(encryption.keys)

    try:
        return asyncio.run(opened())
    except StoreUnavailable as error:
        raise UnreachableError(str(error)) from error


def _of_tenants(keys: DataKeys) -> DataKeys:
    if not keys.has_tenants:
        raise BadRequest("tenants have keys of their own only in a database: set LOOM_DATABASE_URL", field="tenant")
    return keys


def _named(file: Path | None) -> Path | None:
    return None if file is None else local_path(file, "--file")


def _path(settings: Settings) -> Path:
    if settings.encryption_keys is None:
        raise BadRequest(
            "encryption is off: `loom keys new` creates a key, and LOOM_ENCRYPTION_KEYS names its file",
            field="LOOM_ENCRYPTION_KEYS",
        )
    return settings.encryption_keys


def _written(path: Path, keys: list[StackKey]) -> StackKey:
    try:
        write_keys(path, keys)
    except OSError as error:
        raise BadRequest(f"{path} can't be written: {error.strerror}", field="--file") from error
    return keys[0]
