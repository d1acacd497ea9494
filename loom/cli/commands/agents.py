"""agents: which agents a worker would have here, what each is like, and what its runs have come to."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from loom.cli.output import console, counted, one_line, plain, print_json, seconds, visible
from loom.domain.core.errors import UnreachableError
from loom.domain.core.suggestions import nearest

if TYPE_CHECKING:  # each command imports what it works with, so that `loom --help` is fast
    from loom.app.registry import Registry
    from loom.composition.settings import Settings
    from loom.domain.agents.definitions import AgentDefinition
    from loom.domain.agents.spec import AgentSpec

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")]
App = Annotated[str | None, typer.Option("--app", help="package.module:app, in place of LOOM_APP.")]

COLUMN: Final = 20


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Agents: which ones a worker here would have.", no_args_is_help=True)
    group.command("list")(list_agents)
    group.command("show")(show)
    app.add_typer(group, name="agents")


def list_agents(app: App = None, as_json: Json = False) -> None:
    """List the agents that a worker with these settings has, and where they were defined."""
    settings = _settings(app)
    registry = _registry(settings)
    found = [
        {
            "name": agent.name,
            "description": agent.description,
            "model": agent.model or settings.model,
            "extends": agent.extends or None,
            "tools": None if agent.tools is None else len(_spec(settings, registry, agent).tools),
            "origin": agent.origin or "built-in",
        }
        for _, agent in sorted(_agents(registry).items())
    ]
    if as_json:
        print_json(found)
        return
    from rich.table import Table  # noqa: PLC0415

    table = Table("agent", "model", "tools", "extends", "what it is good at", "from", box=None, padding=(0, 2, 0, 0))
    for each in found:
        tools = "all" if each["tools"] is None else str(each["tools"])
        cells = (
            each["name"],
            each["model"] or "",
            tools,
            each["extends"] or "",
            one_line(str(each["description"]), 60),
        )
        table.add_row(*(plain(str(cell)) for cell in cells), plain(str(each["origin"])))
    console(wide=True).print(table)


def show(
    name: Annotated[str, typer.Argument(help="Name of the agent.")], app: App = None, as_json: Json = False
) -> None:
    """Show an agent with everything that it inherits, and what its runs have come to, where a server answers."""
    settings = _settings(app)
    registry = _registry(settings)
    agent = _found(name, registry)
    spec = _spec(settings, registry, agent)
    stats, hint = _stats(name, settings)
    facts = _facts(agent, spec) | {"stats": stats}
    if as_json:
        print_json(facts)
        return
    _tell(agent, facts)
    typer.echo()
    for label, text in _figures(stats).items() if stats else (("runs", f"not known: {hint}"),):
        typer.echo(plain(f"{label:<{COLUMN}}{text}"))


def _figures(stats: dict[str, Any]) -> dict[str, str]:
    ended = f"{stats['success_count']} completed, {stats['failure_count']} failed, {stats['running_count']} going on"
    runs = counted(stats["execution_count"], "run")
    last = stats["last_execution"]
    return {
        "state": str(stats["state"]),
        "runs": f"{runs}: {ended}" + ("" if stats["is_complete"] else "; only the newest were counted"),
        "total time": seconds(stats["total_duration"]),
        "last run": f"{last.astimezone():%Y-%m-%d %H:%M:%S}" if last else "never",
    }


def _settings(app: str | None) -> "Settings":
    from loom.composition.load_settings import load_settings  # noqa: PLC0415

    settings = load_settings()
    return settings.model_copy(update={"app": app}) if app else settings


def _registry(settings: "Settings") -> "Registry":
    from loom.activities.toolbox.built_in.made_tools import MadeTools  # noqa: PLC0415
    from loom.composition.tool_registry import registry_from  # noqa: PLC0415

    return registry_from(settings, MadeTools(sandbox=None))


def _agents(registry: "Registry") -> "dict[str, AgentDefinition]":
    from loom.domain.agents.definitions import AgentDefinition  # noqa: PLC0415
    from loom.domain.agents.inheritance import DEFAULT_AGENT  # noqa: PLC0415

    return {DEFAULT_AGENT: AgentDefinition(name=DEFAULT_AGENT), **registry.agents}


def _found(name: str, registry: "Registry") -> "AgentDefinition":

    from loom.domain.core.errors import BadRequest  # noqa: PLC0415

    agents = _agents(registry)
    if name not in agents:
        hint = nearest(name, agents, "`loom agents list` shows them all")
        raise BadRequest(f"there is no agent {name!r}: {hint}", field="NAME")
    return agents[name]


def _spec(settings: "Settings", registry: "Registry", agent: "AgentDefinition") -> "AgentSpec":
    """The agent as a run would have it, but for tools of MCP servers, which are only known once they are dialled."""
    from dataclasses import replace  # noqa: PLC0415

    from loom.composition.build import default_agent  # noqa: PLC0415
    from loom.composition.tool_registry import hidden_tools  # noqa: PLC0415
    from loom.domain.agents.definitions import spec_of, tools_of  # noqa: PLC0415

    never = hidden_tools(settings)
    tools = tools_of(agent, (tool.spec for name, tool in registry.tools.items() if name not in never))
    return replace(spec_of(agent, default_agent(settings)), tools=tools)


def _facts(agent: "AgentDefinition", spec: "AgentSpec") -> dict[str, Any]:
    pinned = ("model", "fallbacks", "system_prompt", "permissions", "mode", "max_turns", "max_output_tokens")
    limits = ("temperature", "context_window", "approval_timeout", "require_done_tool")
    answers = ("output_schema", "pattern", "rounds", "evaluates")
    skills = ("enabled_skills", "disabled_skills", "activation")
    return {
        **{key: getattr(agent, key) for key in ("name", "description")},
        "origin": agent.origin or "built-in",
        "extends": agent.extends or None,
        **{key: getattr(spec, key) for key in (*pinned, *limits, *answers)},
        "branches": agent.branches,
        "budget": asdict(spec.budget),
        "tools": [tool.name for tool in spec.tools],
        "mcp_tools": [name for name in (*(agent.tools or ()), *agent.config.extra_tools) if name.startswith("mcp__")],
        "disabled_tools": agent.config.disabled_tools,
        **{key: getattr(spec.config, key) for key in skills},
        "hooks": agent.hooks,
    }


def _stats(name: str, settings: "Settings") -> tuple[dict[str, Any] | None, str]:
    from loom.cli.connection import with_client  # noqa: PLC0415

    try:
        return asdict(with_client(lambda loom: loom.agent_stats(name), settings)), ""
    except UnreachableError as error:
        return None, error.message


def _tell(agent: "AgentDefinition", facts: dict[str, Any]) -> None:
    typer.echo(plain(f"{agent.name}  ({facts['origin']})"))
    if agent.description:
        typer.echo(plain(f"\n{agent.description}"))
    if facts["system_prompt"]:
        typer.echo(plain("\n" + "\n".join(f"  {line}" for line in facts["system_prompt"].strip().splitlines())))
    typer.echo()
    for key, value in facts.items():
        if key not in ("name", "description", "origin", "system_prompt", "stats") and (text := _said(value)):
            typer.echo(visible(f"{key.replace('_', ' '):<{COLUMN}}{text}"))


def _said(value: Any) -> str:
    """A value on one line; nothing for what says nothing."""
    if isinstance(value, dict):
        return ", ".join(f"{name}: {each}" for name, each in value.items() if each is not None)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None or value is False else str(value)
