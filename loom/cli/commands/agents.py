"""The `agents` commands, which show a worker's agents and their run statistics."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from loom.cli.arguments import App, Json, new_app
from loom.cli.connection import with_client
from loom.cli.output import console, counted, one_line, plain, print_json, seconds, visible
from loom.cli.worker_preview import load_registry, named, note_preview, running_worker, with_app
from loom.composition.load_settings import load_settings
from loom.composition.secret_mask import secret_mask
from loom.composition.settings import Settings
from loom.composition.worker_catalog import agent_spec, agent_summaries, agents_of
from loom.domain.agents.definitions import AgentDefinition
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import UnreachableError
from loom.domain.core.requests import ModelOptions

COLUMN: Final = 20
"""Width of the column that shows field names."""

app = new_app("agents", "List and show a worker's agents.")


@app.command("list")
def list_agents(app: App = None, as_json: Json = False) -> None:
    """List the running worker's agents, and show where they are defined.

    If you name an app, or if no worker is running, list the agents that a worker started in this folder would have.
    """
    if (running := running_worker(app, "agents")) is not None:
        found = running.agents
    else:
        settings = with_app(load_settings(), app)
        found = agent_summaries(load_registry(settings), settings)
    if as_json:
        print_json(found)
    else:
        _print_agents(found)


OTHERWISE: Final = "`loom agents list` shows all agents; for one of a running worker's app, pass --app or set LOOM_APP"


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the agent.")],
    app: App = None,
    as_json: Json = False,
) -> None:
    """Show the agent that a worker started in this folder would have, and its run statistics.

    The output includes everything that the agent inherits. The statistics need a server.
    """
    settings = with_app(load_settings(), app)
    registry = load_registry(settings)
    agent = named(name, agents_of(registry), "agent", otherwise=OTHERWISE)
    note_preview(app, "agent")
    stats, hint = _stats(name, settings)
    facts = _facts(agent, agent_spec(settings, registry, agent), settings) | {"stats": stats}
    if as_json:
        print_json(facts)
        return
    _print_facts(agent, facts)
    typer.echo()
    for label, text in _stats_lines(stats).items() if stats else (("runs", f"unknown: {hint}"),):
        typer.echo(plain(f"{label:<{COLUMN}}{text}"))


def _print_agents(found: Sequence[Mapping[str, Any]]) -> None:
    table = Table("agent", "model", "tools", "extends", "what it is good at", "from", box=None, padding=(0, 2, 0, 0))
    for each in found:
        cells = (
            each["name"],
            "(code)" if each["node"] else each["model"] or "",
            "all" if each["tools"] is None else each["tools"],
            each["extends"] or "",
            one_line(str(each["description"]), 60),
            each["origin"],
        )
        table.add_row(*(plain(str(cell)) for cell in cells))
    console(wide=True).print(table)


def _stats_lines(stats: Mapping[str, Any]) -> dict[str, str]:
    ended = f"{stats['success_count']} completed, {stats['failure_count']} failed, {stats['running_count']} running"
    runs = counted(stats["execution_count"], "run")
    last = stats["last_execution"]
    return {
        "state": str(stats["state"]),
        "runs": f"{runs}: {ended}" + ("" if stats["is_complete"] else "; only the newest are counted"),
        "total time": seconds(stats["total_duration"]),
        "last run": f"{last.astimezone():%Y-%m-%d %H:%M:%S}" if last else "never",
    }


def _facts(agent: AgentDefinition, spec: AgentSpec, settings: Settings) -> dict[str, Any]:
    pinned = ("model", "fallbacks", "system_prompt", "permissions", "mode", "max_turns", "max_output_tokens")
    limits = ("temperature", "context_window", "rpm", "tpm", "approval_timeout", "require_done_tool")
    compression = ("compress_at", "warn_at", "collapse_at", "compress_target", "keep_turns", "sections")
    loop = ("section_tokens", "loop_window", "shown_tools", "shown_tool_tokens", "parallel_limit", "priority")
    retries = ("model_attempts", "first_retry_delay", "longest_retry_delay", "patience", "tool_attempts")
    timeouts = ("model_timeout", "tool_timeout", "tool_timeouts")
    answers = ("output_schema", "pattern", "rounds", "evaluates")
    skills = ("enabled_skills", "disabled_skills", "activation")
    return {
        **{key: getattr(agent, key) for key in ("name", "description")},
        "origin": agent.origin or "built-in",
        "node": None if agent.node is None else asdict(agent.node),
        "extends": agent.extends or None,
        **{key: getattr(spec, key) for key in (*pinned, *limits, *retries, *answers)},
        **{key: getattr(spec, key) for key in (*compression, *loop, *timeouts)},
        "knowledge": [_base(name, spec) for name in spec.knowledge],
        "branches": agent.branches,
        "budget": asdict(spec.budget),
        "model_options": _options(spec.model_options, settings),
        "tools": [tool.name for tool in spec.tools],
        "mcp_tools": [name for name in (*(agent.tools or ()), *agent.config.extra_tools) if name.startswith("mcp__")],
        "disabled_tools": agent.config.disabled_tools,
        **{key: getattr(spec.config, key) for key in skills},
        "hooks": agent.hooks,
    }


def _base(name: str, spec: AgentSpec) -> dict[str, Any]:
    """Return a knowledge base with its own limits, if it has any."""
    limit = spec.knowledge_limits.get(name)
    return {"base": name} | ({} if limit is None else asdict(limit))


def _options(options: ModelOptions, settings: Settings) -> dict[str, Any]:
    """Return the options that are set. Values of headers may be secrets of any form, so only their names are shown."""
    given = {name: getattr(options, name) for name in options.given}
    if "extra_headers" in given:
        given["extra_headers"] = dict.fromkeys(given["extra_headers"], "***")
    return dict(secret_mask(settings).redact_json(given))


def _stats(name: str, settings: Settings) -> tuple[dict[str, Any] | None, str]:
    """Return the agent's run statistics, or the reason why they are unavailable."""
    try:
        return asdict(with_client(lambda loom: loom.agent_stats(name), settings)), ""
    except UnreachableError as error:
        return None, error.message


def _print_facts(agent: AgentDefinition, facts: dict[str, Any]) -> None:
    typer.echo(plain(f"{agent.name}  ({facts['origin']})"))
    if agent.description:
        typer.echo(plain(f"\n{agent.description}"))
    if facts["system_prompt"]:
        typer.echo(plain("\n" + "\n".join(f"  {line}" for line in facts["system_prompt"].strip().splitlines())))
    typer.echo()
    for key, value in facts.items():
        if key not in ("name", "description", "origin", "system_prompt", "stats") and (text := _value_text(value)):
            typer.echo(visible(f"{key.replace('_', ' '):<{COLUMN}}{text}"))


def _value_text(value: Any) -> str:
    """Format a value on one line. None, False and empty collections result in an empty string."""
    if isinstance(value, dict):
        return ", ".join(f"{name}: {each}" for name, each in value.items() if each is not None)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None or value is False else str(value)
