"""The `permissions` commands. They use the same functions as runs to apply hooks and rules to tool calls."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from loom.app.forms.permission_case import PermissionCase, read_cases
from loom.cli.arguments import App, Json, absolute, new_app, read_object, read_permissions
from loom.cli.call_checks import Checked, Checker, opened_checker
from loom.cli.output import counted, plain, print_json, visible
from loom.domain.agents.inheritance import DEFAULT_AGENT
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import ToolCall
from loom.domain.permissions.judge import Mode
from loom.exit_codes import COMPLETED, FAILED

_OPTIONS: Final = {"tool": "TOOL", "agent": "--agent", "permissions": "--permissions", "arguments": "JSON"}
"""The option or argument of the command line for each part of a call."""

Workspace = Annotated[str, typer.Option(metavar="DIR", help="The run's workspace.")]

app = new_app("permissions", "Check permission rules against tool calls.")


@app.command()
def check(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool's name, such as bash.")],
    arguments: Annotated[str, typer.Argument(metavar="JSON", help="Its arguments as a JSON object.")],
    *,
    agent: Annotated[str, typer.Option(help="The agent whose tools, rules, mode and hooks apply.")] = DEFAULT_AGENT,
    permissions: Annotated[
        str,
        typer.Option(
            metavar="FILE|JSON", help="Rules that override the agent's: a JSON object, or a JSON or TOML file."
        ),
    ] = "{}",
    mode: Annotated[Mode | None, typer.Option(help="The run's mode; default: the agent's.")] = None,
    workspace: Workspace = ".",
    app: App = None,
    as_json: Json = False,
) -> None:
    """Show whether a call would be allowed, need approval or be denied, and which rule decides.

    This command doesn't call the tool, but it calls your app's interceptors and hooks as a run does. You can omit
    arguments that rules don't check, such as a file's content.
    """
    rules = read_permissions(permissions)
    call = ToolCall(id="check", name=tool, arguments=read_object(arguments, "JSON"))
    with redirect_stdout(sys.stderr):  # the app's own output must not mix with the command's output
        checked = asyncio.run(_checked(call, agent, rules, mode, workspace=absolute(workspace), app=app))
    judged = checked.judgement
    if as_json:
        print_json({"verdict": judged.verdict, "rule": judged.rule, "reason": judged.reason})
        return
    typer.echo(visible(f"{judged.verdict}: {judged.rule}"))
    typer.echo(visible(f"  {judged.reason}"))
    for rule in checked.matched:
        typer.echo(visible(f"  matches {rule.text}: {rule.verdict}"))
    for grant in checked.for_run:
        typer.echo(visible(f"  for the run: {grant}"))


@app.command("test")
def check_cases(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Cases: one JSON object on each line, or a list in a .yaml file.")
    ],
    *,
    workspace: Workspace = ".",
    app: App = None,
    as_json: Json = False,
) -> None:
    """Check the verdicts on many calls, and print those that differ from what you expect.

    A case is `{"tool", "arguments", "expect"}`. It may also contain `permissions`, `mode`, `agent` and `name`. `expect`
    is allow, ask or deny, or a list of these. Each call is judged as `loom permissions check` judges it. The exit code
    is 1 if a verdict differs, and 2 if a case is invalid.
    """
    cases = read_cases(file)
    with redirect_stdout(sys.stderr):
        differences = asyncio.run(_differences(file, cases, absolute(workspace), app))
    if as_json:
        print_json({"cases": len(cases), "differences": differences})
    else:
        _print_differences(file, len(cases), differences)
    raise typer.Exit(FAILED if differences else COMPLETED)


async def _checked(
    call: ToolCall, agent: str, rules: dict[str, str], mode: Mode | None, *, workspace: str, app: str | None
) -> Checked:
    async with opened_checker([call.name], [agent], workspace=workspace, app=app) as checker:
        try:
            return await checker.checked(call, agent=agent, rules=rules, mode=mode)
        except BadRequest as error:
            option = _OPTIONS[error.context["field"]]
            raise BadRequest(f"{option}: {plain(error.message)}", field=option) from None


async def _differences(
    file: Path, cases: Sequence[tuple[int, PermissionCase]], workspace: str, app: str | None
) -> list[dict[str, Any]]:
    """Return the cases whose verdict isn't the expected one. Raises BadRequest, which lists all invalid cases."""
    tools, agents = {case.tool for _, case in cases}, {case.agent for _, case in cases}
    found: list[dict[str, Any]] = []
    problems: list[str] = []
    async with opened_checker(tools, agents, workspace=workspace, app=app) as checker:
        for line, case in cases:
            try:
                difference = await _difference(checker, case)
            except BadRequest as error:
                problems.append(f"{file}:{line}: {error.context['field']}: {plain(error.message)}")
                continue
            if difference:
                found.append({"line": line, **difference})
    if problems:
        raise BadRequest("\n".join(problems), field="FILE")
    return found


async def _difference(checker: Checker, case: PermissionCase) -> dict[str, Any] | None:
    call = ToolCall(id="check", name=case.tool, arguments=case.arguments)
    mode = Mode(case.mode) if case.mode else None
    judged = (await checker.checked(call, agent=case.agent, rules=case.permissions, mode=mode)).judgement
    if case.expects(judged.verdict):
        return None
    return {
        "name": case.name,
        "expected": case.expect,
        "verdict": judged.verdict,
        "rule": judged.rule,
        "reason": judged.reason,
    }


def _print_differences(file: Path, cases: int, differences: Sequence[dict[str, Any]]) -> None:
    for each in differences:
        expected = each["expected"] if isinstance(each["expected"], str) else " or ".join(each["expected"])
        name = f" ({each['name']})" if each["name"] else ""
        typer.echo(visible(f"{file}:{each['line']}: expected {expected}, got {each['verdict']}: {each['rule']}{name}"))
        typer.echo(visible(f"  {each['reason']}"))
    typer.echo(f"{counted(cases, 'case')}, {counted(len(differences), 'difference')}")
