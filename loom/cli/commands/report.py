"""The `report` command, which shows where a run's time, tokens and money went."""

from pathlib import Path
from typing import Annotated

import typer

from loom.cli.arguments import Json, NoPager, RunId, new_app
from loom.cli.output import console, print_json, print_notice
from loom.cli.pager import paged
from loom.cli.report_screen import print_report, report_view
from loom.cli.run_names import with_run
from loom.domain.core.errors import BadRequest

app = new_app()


@app.command()
def report(
    run_id: RunId,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write an HTML file with a timeline instead.")
    ] = None,
    no_pager: NoPager = False,
    as_json: Json = False,
) -> None:
    """Show where a run's time, tokens and money went.

    The report ends with advice. This command reads the histories of the run and its sub-agents, so it doesn't need a
    worker.
    """
    if html is not None and as_json:
        raise BadRequest("use --html or --json, not both", field="html")
    if html is not None and not html.parent.is_dir():
        raise BadRequest(f"--html: there is no folder {html.parent}", field="html")
    found = with_run(run_id, lambda loom, run: loom.report(run))
    if as_json:
        print_json(report_view(found))
    elif html is not None:
        from loom.cli.report_html import html_report  # noqa: PLC0415 - only for this option

        write(html, html_report(found), "--html")
        print_notice(f"the report is in {html}")
    else:
        out = console(wide=True)
        with paged(out, wanted=not no_pager):
            print_report(found, out)


def write(file: Path, text: str, option: str) -> None:
    """Write a file. Raises BadRequest if that isn't possible."""
    try:
        file.write_text(text, encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise BadRequest(f"{option}: {file} cannot be written: {error.strerror or error}", field=option) from None
