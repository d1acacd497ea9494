"""Collect all tools, agents, crews and skills that a worker serves, according to its settings."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from loom.activities.adapters.documents.yaml_syntax import parse_yaml
from loom.activities.adapters.shell.parser import BashParser
from loom.activities.adapters.skills.folders import SkillFolders
from loom.activities.adapters.web.fetcher import PinnedFetcher
from loom.activities.adapters.web.html_reader import SeparateHtmlReader
from loom.activities.knowledge.ports import KnowledgeStore
from loom.activities.ports import ArtifactStore, Pasts, Tool
from loom.activities.toolbox.built_in.all_tools import built_in_tools
from loom.activities.toolbox.built_in.delegation import delegation_tool
from loom.activities.toolbox.built_in.http_fetch import http_fetch_tool
from loom.activities.toolbox.built_in.knowledge import knowledge_tools
from loom.activities.toolbox.built_in.made_tools import MadeTools
from loom.activities.toolbox.built_in.memory import memory_tools
from loom.activities.toolbox.built_in.message_agent import Mailbox
from loom.activities.toolbox.built_in.plan import plan_tool
from loom.activities.toolbox.built_in.python_sessions import PythonSessions
from loom.activities.toolbox.built_in.scoped_memory import scoped_memory_tools
from loom.activities.toolbox.built_in.skills import SkillTools
from loom.app import agent_files, crew_files
from loom.app.loom_app import LoomApp
from loom.app.registry import Registry, collect
from loom.composition.memory import WorkerMemory
from loom.composition.settings import Settings
from loom.domain.core.tool_names import DELEGATE
from loom.domain.tools.mcp_servers import read_servers


def registry_from(
    settings: Settings,
    made: MadeTools,
    *,
    app: LoomApp | None = None,
    artifacts: ArtifactStore | None = None,
    mailbox: Mailbox | None = None,
    pasts: Pasts | None = None,
    knowledge: KnowledgeStore | None = None,
    memory: WorkerMemory | None = None,
    sessions: PythonSessions | None = None,
    files: Sequence[Path] = (),
    checks_rules: bool = True,
) -> Registry:
    """Return a registry of the built-in tools and all items that the app and the enabled packages define.

    `app` overrides the app named in the settings. Raises BadRequest if two names clash.
    """
    fetcher = PinnedFetcher(allowed_private=settings.fetch_allow)
    built_in = built_in_tools(
        sandbox=made.sandbox,
        no_sandbox=made.missing,
        shell_parser=BashParser(),
        tool_timeout=settings.tool_timeout,
        home=settings.home,
        parsers=dict.fromkeys(("yaml", "yml"), ("YAML", parse_yaml)),
        sessions=sessions,
        artifacts=artifacts,
        mailbox=mailbox,
        pasts=pasts,
        others=(
            http_fetch_tool(fetcher, SeparateHtmlReader(), settings.tool_timeout),
            delegation_tool({}),
            plan_tool(),
            *knowledge_tools(knowledge),
            *_of_memory(memory),
            *skill_tools(settings, made).tools(),
            *([made.maker()] if settings.dynamic_tools == "on" else []),
        ),
    )
    registry = collect(
        built_in=built_in,
        app=app if app is not None else settings.app,
        packages=settings.packages,
        tool_timeout=settings.tool_timeout,
        home=settings.home,
        servers=read_servers(settings.mcp),
        agents=(settings.home / agent_files.FOLDER, *settings.agents),
        crews=(settings.home / crew_files.FOLDER, *settings.crews),
        files=files,
        checks_rules=checks_rules,
    )
    # The delegation tool is added last, because it needs the list of all agents.
    return replace(registry, tools={**registry.tools, DELEGATE: delegation_tool(registry.agents)})


def hidden_tools(settings: Settings) -> frozenset[str]:
    """Return the tools that rules and agents may refer to, but that no run has: the memory tools if memory is off."""
    return frozenset() if settings.remembers else frozenset(tool.spec.name for tool in _of_memory(None))


def _of_memory(memory: WorkerMemory | None) -> tuple[Tool, ...]:
    store, scoped = (memory.store, memory.scoped) if memory else (None, None)
    return (*memory_tools(store), *scoped_memory_tools(scoped))


def skill_tools(settings: Settings, made: MadeTools) -> SkillTools:
    """Return a factory for the tools that skills provide. Skill scripts run in the sandbox, like created tools."""

    async def note_of_missing(root: str, workspace: Path) -> str:
        from loom.activities.adapters.skills.requirements import noting  # noqa: PLC0415 - most runs load no skill

        return await noting(made.sandbox)(root, workspace)

    return SkillTools(
        sandbox=made.sandbox,
        missing=made.missing,
        timeout=settings.tool_timeout,
        note_of_missing=note_of_missing,
    )


def skills_from(settings: Settings, registry: Registry) -> SkillFolders:
    """Return the skill folders of this worker's runs."""
    return SkillFolders(home=settings.skills_home, trusted=settings.trusted_folders, others=registry.skills)
