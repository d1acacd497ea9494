"""The `agents` commands, which show a worker's agents and their run statistics."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from loom.app.registry import Registry
from loom.cli.arguments import App, Json, new_app
from loom.cli.connection import with_client
from loom.cli.output import console, counted, one_line, plain, print_json, seconds, visible
from loom.cli.worker_preview import agents_of, load_registry, named, with_app
from loom.composition.build import default_agent, secret_mask
from loom.composition.load_settings import load_settings
from loom.composition.settings import Settings
from loom.composition.tool_registry import hidden_tools
from loom.domain.agents.definitions import AgentDefinition, spec_of, tools_of
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import UnreachableError
from loom.domain.core.requests import ModelOptions

COLUMN: Final = 20
"""Width of the column that shows field names."""

app = new_app("agents", "List and show a worker's agents.")


@app.command("list")
def list_agents(app: App = None, as_json: Json = False) -> None:
    """List a worker's agents and show where they are defined."""
    settings = with_app(load_settings(), app)
    registry = load_registry(settings)
    found = [
        {
            "name": agent.name,
            "description": agent.description,
            "model": agent.model or settings.model,
            "extends": agent.extends or None,
            "tools": None if agent.tools is None else len(_spec(settings, registry, agent).tools),
            "origin": agent.origin or "built-in",
        }
        for _, agent in sorted(agents_of(registry).items())
    ]
    if as_json:
        print_json(found)
    else:
        _print_agents(found)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name of the agent.")], app: App = None, as_json: Json = False
) -> None:
    """Show an agent and its run statistics.

    The output includes everything that the agent inherits. The statistics need a server.
    """
    settings = with_app(load_settings(), app)
    registry = load_registry(settings)
    agent = named(name, agents_of(registry), "agent", otherwise="`loom agents list` shows all agents")
    stats, hint = _stats(name, settings)
    facts = _facts(agent, _spec(settings, registry, agent), settings) | {"stats": stats}
    if as_json:
        print_json(facts)
        return
    _print_facts(agent, facts)
    typer.echo()
    for label, text in _stats_lines(stats).items() if stats else (("runs", f"unknown: {hint}"),):
        typer.echo(plain(f"{label:<{COLUMN}}{text}"))


def _print_agents(found: list[dict[str, Any]]) -> None:
    table = Table("agent", "model", "tools", "extends", "what it is good at", "from", box=None, padding=(0, 2, 0, 0))
    for each in found:
        cells = (
            each["name"],
            each["model"] or "",
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


def _spec(settings: Settings, registry: Registry, agent: AgentDefinition) -> AgentSpec:
    """Return the agent's spec as in a run, but without MCP tools, because no MCP servers are connected yet."""
    hidden = hidden_tools(settings)
    tools = tools_of(agent, (tool.spec for name, tool in registry.tools.items() if name not in hidden))
    return replace(spec_of(agent, default_agent(settings)), tools=tools)


def _facts(agent: AgentDefinition, spec: AgentSpec, settings: Settings) -> dict[str, Any]:
    pinned = ("model", "fallbacks", "system_prompt", "permissions", "mode", "max_turns", "max_output_tokens")
    limits = ("temperature", "context_window", "rpm", "tpm", "approval_timeout", "require_done_tool")
    retries = ("model_attempts", "first_retry_delay", "longest_retry_delay", "patience")
    answers = ("output_schema", "pattern", "rounds", "evaluates")
    skills = ("enabled_skills", "disabled_skills", "activation")
    return {
        **{key: getattr(agent, key) for key in ("name", "description")},
        "origin": agent.origin or "built-in",
        "extends": agent.extends or None,
        **{key: getattr(spec, key) for key in (*pinned, *limits, *retries, *answers)},
        "branches": agent.branches,
        "budget": asdict(spec.budget),
        "model_options": _options(spec.model_options, settings),
        "tools": [tool.name for tool in spec.tools],
        "mcp_tools": [name for name in (*(agent.tools or ()), *agent.config.extra_tools) if name.startswith("mcp__")],
        "disabled_tools": agent.config.disabled_tools,
        **{key: getattr(spec.config, key) for key in skills},
        "hooks": agent.hooks,
    }


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
