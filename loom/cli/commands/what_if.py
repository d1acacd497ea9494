"""The `what-if` command, which shows how recorded runs would go with other rules, another model or another prompt."""

import sys
from contextlib import redirect_stdout
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from loom.cli.arguments import App, Json, new_app, read_permissions
from loom.cli.connection import with_client
from loom.cli.evals.planned_runs import checked_name
from loom.cli.evals.what_if_conversations import conversations_view, print_conversations, rerun
from loom.cli.evals.what_if_rules import Changes, decided_again, print_rules, rules_view
from loom.cli.output import counted, print_json, print_notice
from loom.composition.load_settings import load_settings
from loom.domain.core.errors import BadRequest
from loom.domain.permissions.judge import Mode

app = new_app()


@app.command("what-if")
def what_if(
    runs: Annotated[list[str], typer.Argument(metavar="RUN…", help="Recorded runs.")],
    *,
    permissions: Annotated[
        str | None, typer.Option(metavar="FILE|JSON", help="Rules that override the runs' own.")
    ] = None,
    mode: Annotated[str | None, typer.Option(help="Permission mode, instead of the runs' own.")] = None,
    model: Annotated[str | None, typer.Option(help="Model, instead of the runs' own.")] = None,
    prompt: Annotated[
        Path | None, typer.Option(metavar="FILE", help="System prompt, instead of the agents' own.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the new runs. The same command with this name resumes. Default: a new name."),
    ] = None,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Show how recorded runs would go with other rules, another model, or another prompt.

    With --permissions or --mode, judge the runs' tool calls again. With --model or --prompt, rerun the runs, and answer
    their tool calls with the recorded results. In both cases, no tool runs.
    """
    changes = Changes(
        model=model,
        prompt=None if prompt is None else _text_of(prompt),
        permissions=read_permissions(permissions) if permissions is not None else {},
        mode=_read_mode(mode),
    )
    if changes == Changes():
        raise BadRequest("pass at least one of --permissions, --mode, --model and --prompt", field="what-if")
    chosen = checked_name(name if name is not None else f"w-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    with redirect_stdout(sys.stderr):  # the app's own output must not mix with the report
        if changes.model is None and changes.prompt is None:
            decided = with_client(lambda loom: decided_again(loom, runs, changes, app=app))
            view, show = rules_view(decided), partial(print_rules, decided)
        else:
            settings = load_settings()
            print_notice(f"what-if {chosen}: {counted(len(runs), 'run')}")
            done = with_client(lambda loom: rerun(loom, settings, runs, name=chosen, changes=changes, app=app))
            view, show = conversations_view(done), partial(print_conversations, done)
    if as_json:
        print_json(view)
    else:
        show()


def _read_mode(mode: str | None) -> Mode | None:
    if mode is not None and mode not in tuple(Mode):
        raise BadRequest(f"--mode: {mode!r} is not one of {', '.join(Mode)}", field="mode")
    return None if mode is None else Mode(mode)


def _text_of(prompt: Path) -> str:
    try:
        text = prompt.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"--prompt: {prompt} cannot be read: {error}", field="prompt") from None
    if not text:
        raise BadRequest(f"--prompt: {prompt} is empty", field="prompt")
    return text
