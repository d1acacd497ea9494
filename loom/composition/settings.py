"""All settings, with their defaults and environment variables.

Values are read from the following sources, in order of precedence: the environment, `.env` in the working directory,
`loom.toml` in the working directory (its keys are the field names of `Settings`), the addresses of a running embedded
stack, and the defaults. `loom/composition/load_settings.py` reads them. An empty variable counts as not set. Unless a
field specifies another name, its environment variable is `LOOM_` followed by the field's name.
"""

from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, SecretStr
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from loom.domain.memory.layers import MemorySettings
from loom.domain.tools.mcp_servers import read_servers
from loom.domain.tools.sandbox_limits import Limits
from loom.domain.web.addresses import read_opening

TOML_FILE = "loom.toml"


def _named(variable: str) -> AliasChoices:
    """Return the variable's usual name, the same name with Loom's prefix, and the key in `loom.toml`."""
    return AliasChoices(variable, f"LOOM_{variable}", variable.lower())


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def _off(value: object) -> object:
    return None if value == "off" else value


def _listed(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _there(folders: tuple[Path, ...]) -> tuple[Path, ...]:
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"there is no folder {folder}")
    return folders


def _opening(entries: tuple[str, ...]) -> tuple[str, ...]:
    read_opening(entries)
    return entries


def _servers(tables: dict[str, Any]) -> dict[str, Any]:
    read_servers(tables)
    return tables


def _host_and_port(address: str) -> str:
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError("must be HOST:PORT, such as localhost:7233")
    return address


def _url_of(*schemes: str) -> AfterValidator:
    def check(url: str) -> str:
        if urlsplit(url).scheme not in schemes:
            raise ValueError(f"must be a URL that begins with {' or '.join(f'{s}://' for s in schemes)}")
        return url

    return AfterValidator(check)


Directory = Annotated[Path, AfterValidator(_absolute)]
Seconds = Annotated[float, Field(gt=0, le=10 * 365 * 86_400, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]


class Settings(BaseSettings):
    """The settings, read once and frozen so that a process always sees the same values."""

    model_config = SettingsConfigDict(
        env_prefix="LOOM_",
        env_file=".env",
        env_ignore_empty=True,
        toml_file=TOML_FILE,
        extra="ignore",
        frozen=True,
        protected_namespaces=(),
    )

    model: str | None = Field(None, description="Model of runs that name none: openai:NAME, anthropic:NAME, demo.")
    fallback_models: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)] = Field(
        (), description="Models that take over when the one before does not answer, separated by commas."
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(None, description="None: the provider's own.")
    max_output_tokens: Count = Field(8192, description="Longest answer of one model call.")

    temporal_address: Annotated[str, AfterValidator(_host_and_port)] = Field(
        "localhost:7233", validation_alias=_named("TEMPORAL_ADDRESS"), description="HOST:PORT of the Temporal frontend."
    )
    temporal_namespace: str = Field(
        "default", validation_alias=_named("TEMPORAL_NAMESPACE"), description="Namespace that all runs live in."
    )
    temporal_api_key: SecretStr | None = Field(
        None, validation_alias=_named("TEMPORAL_API_KEY"), description="Key for Temporal Cloud; implies TLS."
    )
    temporal_tls: bool = Field(
        default=False, validation_alias=_named("TEMPORAL_TLS"), description="Speak TLS to Temporal."
    )
    task_queue: str = Field(
        "loom", min_length=1, pattern="^[^']*$", description="Task queue of workflows and activities."
    )
    database_url: Annotated[str, _url_of("postgresql", "postgres")] | None = Field(
        None, repr=False, description="Postgres with pgvector; without it no memory, ledger or search."
    )
    redis_url: Annotated[str, _url_of("redis", "rediss", "unix")] | None = Field(
        None, repr=False, description="Redis for live events and transcripts; without it runs go on, unseen."
    )
    redis_server: Annotated[Path, AfterValidator(_absolute)] | None = Field(
        None, description="Redis or Valkey server that `loom up` runs; None: the packaged one, else one on PATH."
    )
    home: Directory = Field(Path(".loom"), validate_default=True, description="State of the embedded stack.")

    workspace: Directory = Field(
        default_factory=Path.cwd, description="Directory that tools work in when a run names none."
    )
    max_turns: Count = Field(50, description="Turns of a run that names no limit.")
    context_window: Annotated[int, Field(ge=1000)] = Field(200_000, description="Tokens that the model takes.")
    collapse_at: Share = Field(0.5, description="Share of the window from which on old tool results are shortened.")
    warn_at: Share = Field(0.8, description="Share of the window from which on the model and people are warned.")
    compress_at: Share = Field(0.92, description="Share of the window from which on a conversation is compressed.")
    compress_target: Share = Field(0.75, description="What a compression leaves at most of what was there.")
    section_tokens: Count = Field(512, description="Tokens of one of the eight sections of a compressed conversation.")
    loop_window: Annotated[int, Field(ge=0)] = Field(
        5, description="Turns of the same calls with the same results after which a run is stopped; 0: never."
    )
    evaluation: Literal["on", "off"] = Field(
        "off", description="on: the model rates each run's answer, with one more call of it."
    )
    tool_timeout: Seconds = Field(120, description="Longest tool call in seconds, when the tool says nothing else.")
    parallel_limit: Count = Field(10, description="Read-only tool calls of one turn that run at once.")
    unknown_price: Literal["deny", "assume", "free"] = Field(
        "deny", description="A model without a known price: no budget in dollars; as a dear one; costs nothing."
    )
    max_depth: Annotated[int, Field(ge=0, le=20)] = Field(3, description="Levels of sub-agents below a run; 0: none.")
    max_children: Annotated[int, Field(ge=0, le=1000)] = Field(20, description="Sub-agents in one run's whole tree.")
    approval_timeout: Seconds = Field(
        604_800, description="Seconds that an ask waits for a person before it is denied."
    )
    embedder: str = Field(
        "auto", description="What makes vectors: auto, offline, off, openai:MODEL or openai:MODEL@DIMENSION."
    )
    memory: Literal["on", "off"] = Field(
        "on", description="off: nothing is remembered, also where there is a database."
    )
    memory_model: str | None = Field(
        None, description="Model that distils long texts into facts; off: their first sentences. None: that of `model`."
    )
    memory_limits: MemorySettings = Field(
        default_factory=MemorySettings, description="How much is kept for how long: table [memory_limits], or JSON."
    )
    sandbox: Literal["on", "off"] = Field("on", description="off: tools run without isolation, on your word.")
    sandbox_memory: Count = Field(4 * 1024**3, description="Bytes of memory of one command with all its processes.")
    sandbox_processes: Count = Field(512, description="Processes and threads of one command.")
    sandbox_cpu: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        2.0, description="Processor seconds of one command for each second of its timeout."
    )
    sandbox_disk: Count = Field(8 * 1024**3, description="Bytes that one command may write to the disk.")
    sandbox_file_size: Count = Field(2 * 1024**3, description="Bytes of any file that a command writes.")
    sandbox_temporary: Count = Field(1024**3, description="Bytes of /tmp inside the sandbox.")
    sandbox_open_files: Count = Field(4096, description="Open files of each process of a command.")
    snapshots: Literal["on", "off", "required"] = Field(
        "on", description="Keep workspaces as they were before each change; required: nothing is changed otherwise."
    )
    fetch_allow: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed), AfterValidator(_opening)] = Field(
        (), description="Hosts and networks that http_fetch may reach although they are not public, by commas."
    )
    trusted_folders: Annotated[tuple[Directory, ...], NoDecode, BeforeValidator(_listed)] = Field(
        (), description="Workspaces in or below these may bring skills of their own, separated by commas."
    )
    skills_home: Annotated[Directory | None, BeforeValidator(_off)] = Field(
        default_factory=Path.home, description="Home whose skills all runs may have; off: none of a home."
    )
    dynamic_tools: Literal["on", "off"] = Field("off", description="on: agents may make tools at run time, and ask.")
    app: str | None = Field(None, description="Module with tools and agents of your own: package.module:app.")
    agents: Annotated[tuple[Directory, ...], NoDecode, BeforeValidator(_listed), AfterValidator(_there)] = Field(
        (), description="More folders of agent files, by commas; .loom/agents and one beside the app are read anyway."
    )
    crews: Annotated[tuple[Directory, ...], NoDecode, BeforeValidator(_listed), AfterValidator(_there)] = Field(
        (), description="More folders of crew files, by commas; .loom/crews and one beside the app are read anyway."
    )
    packages: str = Field("", description="Installed packages whose tools are loaded, by commas; * for all.")
    mcp: Annotated[dict[str, Any], AfterValidator(_servers)] = Field(
        default_factory=dict, description="MCP servers: tables [mcp.NAME] of loom.toml, see docs/mcp.md."
    )
    on_changed_manifest: Literal["keep", "refuse"] = Field(
        "keep", description="What a worker does with a run whose pinned tools or prompts differ from its own."
    )
    rotate_after_events: Annotated[int, Field(ge=100, le=40_000)] = Field(
        4000, description="History length at which a run continues as new, if Temporal does not ask earlier."
    )

    max_cached_workflows: Annotated[int, Field(ge=0)] = Field(
        1000, description="Runs a worker keeps in memory; more active runs than this are five times slower."
    )
    max_concurrent_activities: Count = Field(100, description="Model and tool calls a worker does at once.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Lowest level that is logged.")
    log_format: Literal["json", "console"] = Field("json", description="json: one object a line; console: for eyes.")
    metrics_port: Annotated[Annotated[int, Field(ge=0, le=65535)] | None, BeforeValidator(_off)] = Field(
        9091,
        description="Prometheus port of the worker; 0: any free one, as where nobody set it and it is taken; off.",
    )

    openai_api_key: SecretStr | None = Field(
        None, validation_alias=_named("OPENAI_API_KEY"), description="For openai:*."
    )
    openai_base_url: Annotated[str, _url_of("http", "https")] | None = Field(
        None, validation_alias=_named("OPENAI_BASE_URL"), description="Another server that speaks OpenAI's protocol."
    )
    anthropic_api_key: SecretStr | None = Field(
        None, validation_alias=_named("ANTHROPIC_API_KEY"), description="For anthropic:*."
    )
    anthropic_base_url: Annotated[str, _url_of("http", "https")] | None = Field(
        None, validation_alias=_named("ANTHROPIC_BASE_URL"), description="Another server with Anthropic's protocol."
    )

    @property
    def remembers(self) -> bool:
        """Whether runs store memories, which requires a database."""
        return self.memory == "on" and self.database_url is not None

    @property
    def sandbox_limits(self) -> Limits:
        """The resource limits for one command."""
        return Limits(
            memory=self.sandbox_memory,
            processes=self.sandbox_processes,
            cpu=self.sandbox_cpu,
            disk=self.sandbox_disk,
            file_size=self.sandbox_file_size,
            temporary=self.sandbox_temporary,
            open_files=self.sandbox_open_files,
        )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Set the order of precedence: the environment first, then `.env`, then `loom.toml`."""
        toml = TomlConfigSettingsSource(settings_cls)
        return init_settings, env_settings, dotenv_settings, toml
