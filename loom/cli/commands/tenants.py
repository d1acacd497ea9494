"""The `tenants` commands, which delete the encryption keys of tenants."""

from collections.abc import Sequence
from contextlib import aclosing
from typing import Annotated

import typer
from temporalio.client import Client, WorkflowExecutionStatus

from loom.cli.arguments import Json, new_app
from loom.cli.connection import with_client
from loom.cli.output import counted, one_line, print_json, print_notice
from loom.cli.policy_changes import record_change
from loom.client import LoomClient
from loom.composition.encryption import encryption_from
from loom.composition.load_settings import load_settings
from loom.composition.settings import Settings
from loom.domain.audit.entries import Act
from loom.domain.core.errors import BadRequest, RefusedError
from loom.visibility import listing

app = new_app("tenants", "Forget tenants: delete the keys that encrypt their data.")


@app.callback()
def group() -> None:
    """Keep this a group of commands while it has only one."""


@app.command()
def forget(
    name: Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's name.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation. This can't be undone.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Forget the tenant even if its runs are in progress.")] = False,
    as_json: Json = False,
) -> None:
    """Delete a tenant's encryption keys, so that nobody can read the tenant's data, even in backups.

    This covers the histories, results, artifacts and live events of all the tenant's runs, and its memory, which is
    also deleted. Running processes may still use a key for a minute. Data that was
    stored before you turned on encryption isn't encrypted, and stays readable.
    """
    settings = load_settings()
    if settings.encryption_keys is None or settings.database_url is None:
        raise BadRequest(
            "tenants have keys only with encryption and a database: set LOOM_ENCRYPTION_KEYS and LOOM_DATABASE_URL",
            field="LOOM_ENCRYPTION_KEYS",
        )
    if not yes and not typer.confirm(f"Make all data of the tenant {one_line(name)} unreadable for ever?"):
        raise typer.Exit(1)

    async def work(loom: LoomClient) -> Sequence[str]:
        running = f"{_runs_of(name)} AND ExecutionStatus = 'Running'"
        if not force and await _is_any_running(loom.temporal, running):
            total = (await loom.temporal.count_workflows(running)).count
            raise RefusedError(
                f"{counted(total, 'run')} of the tenant {name!r} can't continue without its keys: abort them"
                f" (`loom list --tenant {name}`), or pass --force"
            )
        return await _forgotten(settings, name)

    keys = with_client(work, settings)
    if not keys:
        raise BadRequest(f"the tenant {name!r} has no keys", field="TENANT")
    record_change(Act.FORGET_TENANT, {"keys": keys}, tenant=name)
    if as_json:
        print_json({"tenant": name, "forgotten": keys})
    else:
        print_notice(f"Forgotten: {counted(len(keys), 'key')} of the tenant {one_line(name)}.")


async def _is_any_running(temporal: Client, listed: str) -> bool:
    """Whether one of the listed runs is running. The server's list can be some seconds old, so each run is asked."""
    async for each in temporal.list_workflows(listed):
        described = await temporal.get_workflow_handle(each.id).describe()
        if described.status is WorkflowExecutionStatus.RUNNING:
            return True
    return False


def _runs_of(tenant: str) -> str:
    return listing(status=None, session=None, below=None, tenant=tenant, waiting=None)


async def _forgotten(settings: Settings, name: str) -> Sequence[str]:
    encryption = encryption_from(settings)
    assert encryption.keys is not None  # noqa: S101 - the settings name a file
    async with aclosing(encryption):
        return await encryption.keys.forget(name)
