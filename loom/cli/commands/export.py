"""The `export` and `artifact` commands, which export a run's record and read its stored outputs."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from loom.cli.arguments import Json, RunId, new_app
from loom.cli.output import console, counted, plain, print_json, print_notice
from loom.cli.run_names import with_run
from loom.client import LoomClient
from loom.domain.core.errors import BadRequest
from loom.run_artifacts import Artifact, text_of
from loom.watching import closing

app = new_app()
artifact_app = new_app("artifact", "List and read the outputs and files that a run has stored.")
app.add_typer(artifact_app)


@app.command()
def export(
    run_id: RunId,
    artifacts: Annotated[
        bool, typer.Option("--artifacts", help="Include the contents of stored outputs and files.")
    ] = False,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="S", help="Where events come from: stream or history. Default: the stream, if it is complete."
        ),
    ] = None,
) -> None:
    """Export a run's complete record as JSON lines.

    The record contains the request, messages, tool calls, approvals, events and the result. The records of sub-agents
    follow those of the run. This command doesn't need a worker.
    """

    async def printed(loom: LoomClient, run: str) -> None:
        async with closing(loom.export(run, artifacts=artifacts, source=source)) as records:
            async for record in records:
                print_json(record)

    with_run(run_id, printed)


@artifact_app.command(name="list")
def list_artifacts(run_id: RunId, as_json: Json = False) -> None:
    """List what a run has stored: outputs that were too long for the model, shared texts, and files."""
    found = with_run(run_id, lambda loom, run: loom.artifacts(run))
    if as_json:
        print_json(found)
        return
    out = console()
    for artifact in found:
        out.print(_line(artifact), soft_wrap=True)
    if not found:
        typer.echo("the run has no artifacts; `loom show` shows its results")


@artifact_app.command(name="get")
def get_artifact(
    run_id: RunId,
    artifact: Annotated[str, typer.Argument(metavar="ID", help="The artifact's id.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file.")] = None,
) -> None:
    """Print an artifact in full, or write it to a file.

    An image or another binary file goes into a file or a pipe, but not to a terminal.
    """
    if output is not None and not output.parent.is_dir():
        raise BadRequest(f"--output: there is no folder {output.parent}", field="output")
    content = with_run(run_id, lambda loom, run: loom.artifact_bytes(run, artifact))
    if output is None:
        # At a terminal, an output must not control it. A program gets it as it is.
        sys.stdout.buffer.write(plain(text_of(content)).encode() if sys.stdout.isatty() else content)
        sys.stdout.flush()
        return
    try:
        output.write_bytes(content)
    except OSError as error:
        raise BadRequest(f"--output: {output} cannot be written: {error.strerror or error}", field="output") from None
    print_notice(f"{counted(len(content), 'byte')} written to {output}")


def _line(artifact: Artifact) -> str:
    at, what = f"{artifact.created_at:%Y-%m-%d %H:%M:%S} UTC", plain(f"{artifact.media_type} {artifact.name}".rstrip())
    return f"{plain(artifact.id):<28} {artifact.bytes:>12,} bytes  {at}  {what}"
