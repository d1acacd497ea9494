"""The `deployments` commands, which move runs from one version of the workers to the next."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import Annotated, Final, TypeAlias

import typer
from rich.table import Table
from temporalio.client import WorkflowExecution
from temporalio.common import WorkerDeploymentVersion

from loom.activities.adapters.temporal.deployments import CURRENT, DeploymentVersion, TemporalDeployments
from loom.cli.arguments import Json
from loom.cli.connection import notice_if_slow, with_client
from loom.cli.output import console, counted, one_line, print_json, print_notice
from loom.client import LoomClient
from loom.domain.core.errors import BadRequest
from loom.domain.core.requests import AGENT_RUN, CREW_RUN

Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="The deployment: LOOM_DEPLOYMENT of its workers.")]
Build: TypeAlias = Annotated[str, typer.Argument(metavar="BUILD", help="The version: LOOM_BUILD of its workers.")]

RUNS: Final = (AGENT_RUN, CREW_RUN)

app = typer.Typer(
    name="deployments",
    help="Show which runs are on which version of the workers, and move them.",
    invoke_without_command=True,
    rich_markup_mode=None,
)


@app.callback()
def show_versions(context: typer.Context, as_json: Json = False) -> None:
    """Show which runs are on which version of the workers, and move them."""
    if context.invoked_subcommand is not None:
        return

    async def look(deployments: TemporalDeployments) -> tuple[Sequence[DeploymentVersion], int]:
        return await deployments.versions(), await deployments.unversioned_runs()

    versions, unversioned = with_client(lambda loom: look(TemporalDeployments(loom.temporal)))
    if as_json:
        print_json({"versions": [asdict(version) for version in versions], "unversioned_runs": unversioned})
    else:
        _print_versions(versions, unversioned)


@app.command()
def runs(deployment: Name, build: Build, as_json: Json = False) -> None:
    """List the workflows that are running on a version, newest first."""
    version = _version(deployment, build)
    found = with_client(lambda loom: TemporalDeployments(loom.temporal).runs_on(version))
    if as_json:
        print_json([_entry(each) for each in found])
        return
    if not found:
        print_notice(f"no workflow is running on {deployment} {build}")
    for each in found:
        typer.echo(one_line(each.id) if each.workflow_type in RUNS else f"{one_line(each.id)} ({each.workflow_type})")


@app.command()
def promote(deployment: Name, build: Build, as_json: Json = False) -> None:
    """Make a version current: new runs start on it, and unversioned runs continue on it."""
    version = _version(deployment, build)

    async def promoted(loom: LoomClient) -> None:
        with notice_if_slow(f"waiting for a worker of {deployment} {build}"):
            await TemporalDeployments(loom.temporal).promote(version)

    with_client(promoted)
    if as_json:
        print_json({"deployment": deployment, "build": build, "status": CURRENT})
    else:
        typer.echo(f"{deployment} {build} is current: new runs start on it.")


@app.command()
def drain(deployment: Name, build: Build, as_json: Json = False) -> None:
    """Ask the runs on a version to continue on the current one, and wait until none is left.

    A run that is waiting moves at once. Any other run moves after its current model call, tool calls or sub-agents.
    """
    version = _version(deployment, build)

    async def wait(deployments: TemporalDeployments) -> None:
        before = 0
        async with aclosing(deployments.drain(version)) as counts:
            async for left in counts:
                if left and left != before:
                    print_notice(f"{counted(left, 'workflow')} left on {deployment} {build}")
                before = left

    with_client(lambda loom: wait(TemporalDeployments(loom.temporal)))
    if as_json:
        print_json({"deployment": deployment, "build": build, "left": 0})
    else:
        typer.echo(f"Nothing is left on {deployment} {build}: you can stop its workers.")


def _version(deployment: str, build: str) -> WorkerDeploymentVersion:
    for value, name in ((deployment, "NAME"), (build, "BUILD")):
        if not value or set(value) & set("':"):
            raise BadRequest(f"{name}: {value!r} can't be the name of a deployment or a build", field=name)
    return WorkerDeploymentVersion(deployment, build)


def _entry(execution: WorkflowExecution) -> dict[str, object]:
    return {"run_id": execution.id, "workflow": execution.workflow_type, "started_at": execution.start_time}


def _print_versions(versions: Sequence[DeploymentVersion], unversioned: int) -> None:
    out = console(wide=True)
    if versions:
        names = ("deployment", "build", "status", "runs", "other workflows", "since")
        table = Table(*names, box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for each in versions:
            since = f"{each.since:%Y-%m-%d %H:%M} UTC" if each.since else ""
            table.add_row(each.deployment, each.build, each.status, str(each.runs), str(each.other_workflows), since)
        out.print(table)
    else:
        out.print("no deployments; start a versioned worker with `loom worker --deployment NAME --build ID`")
    if unversioned:
        out.print(f"{counted(unversioned, 'run')} without a version")
    current = {each.deployment for each in versions if each.status == CURRENT}
    for name in sorted({each.deployment for each in versions} - current):
        print_notice(
            f"No version of {name} is current, so no new run starts on it: loom deployments promote {name} BUILD"
        )
