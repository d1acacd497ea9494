"""All settings, with their defaults and environment variables.

Values are read from the following sources, in order of precedence: the environment, `.env` in the working directory,
`loom.toml` in the working directory, the addresses of a running embedded stack, and the defaults. The keys in
`loom.toml` are the field names of `Settings`. `loom/composition/load_settings.py` reads the values. An empty variable
counts as not set. Unless a field specifies another name, its environment variable is `LOOM_` followed by the field's
name.
"""

import math
import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from loom.domain.core.model_prices import ModelPrice
from loom.domain.core.requests import LONGEST_RUN
from loom.domain.core.tenants import TENANT_NAME, TenantLimits
from loom.domain.memory.layers import MemorySettings
from loom.domain.permissions.bounds import Bounds
from loom.domain.permissions.judge import Mode
from loom.domain.tools.mcp_servers import read_servers
from loom.domain.tools.sandbox_limits import Limits
from loom.domain.web.addresses import read_opening

TOML_FILE = "loom.toml"


def _named(variable: str) -> AliasChoices:
    """Return the names of a setting: the variable's usual name, that name with Loom's prefix, and the TOML key."""
    return AliasChoices(variable, f"LOOM_{variable}", variable.lower())


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def _off(value: object) -> object:
    return None if value == "off" else value


def _listed(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _as_in_path(value: object) -> object:
    if not isinstance(value, str):
        return value
    if not (folders := tuple(filter(None, value.split(os.pathsep)))):
        raise ValueError("must name at least one folder")
    return folders


def _there(folders: tuple[Path, ...]) -> tuple[Path, ...]:
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"there is no folder {folder}")
    return folders


def _unlinked(folders: tuple[Path, ...]) -> tuple[Path, ...]:
    for folder in _there(folders):
        if folder != folder.resolve():
            raise ValueError(f"{folder} leads through a link: name the folder itself, {folder.resolve()}")
    return folders


def _opening(entries: tuple[str, ...]) -> tuple[str, ...]:
    read_opening(entries)
    return entries


def _servers(tables: dict[str, Any]) -> dict[str, Any]:
    read_servers(tables)
    return tables


def _known_limits(tables: object) -> object:
    for name, table in tables.items() if isinstance(tables, dict) else ():
        known = [field.name for field in fields(TenantLimits)]
        if isinstance(table, dict) and (unknown := [key for key in table if key not in known]):
            raise ValueError(f"unknown limit {name}.{unknown[0]}; known: {', '.join(known)}")
    return tables


def _tenants(limits: dict[str, TenantLimits]) -> dict[str, TenantLimits]:
    for name, of in limits.items():
        if not re.match(TENANT_NAME, name):
            raise ValueError(f"{name!r} is no tenant's name: use letters, digits, dots, hyphens and underscores")
        for field in fields(of):
            if (limit := getattr(of, field.name)) is not None and not 0 < limit < math.inf:
                raise ValueError(f"{name}.{field.name} must be a positive number")
    return limits


def _known_prices(tables: object) -> object:
    known = [field.name for field in fields(ModelPrice)]
    for name, table in tables.items() if isinstance(tables, dict) else ():
        if isinstance(table, dict) and (unknown := [key for key in table if key not in known]):
            raise ValueError(f"unknown price {name}.{unknown[0]}; known: {', '.join(known)}")
    return tables


def _prices(prices: dict[str, ModelPrice]) -> dict[str, ModelPrice]:
    for name, price in prices.items():
        if not re.fullmatch(r"[^:*]+:[^*]*\*?", name):
            raise ValueError(f"{name!r} is no model: write PREFIX:NAME, or the start of such a name with * at its end")
        for field in fields(price):
            if (dollars := getattr(price, field.name)) is not None and not 0 <= dollars < math.inf:
                raise ValueError(f"{name}.{field.name} must be dollars per million tokens, at least 0")
    return prices


def _host_and_port(address: str) -> str:
    if address.startswith("unix:/"):
        return address
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError("must be HOST:PORT, such as localhost:7233, or unix:/PATH")
    return address


def _matching(pattern: str, rule: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text, re.ASCII):
            raise ValueError(rule)
        return text

    return AfterValidator(check)


def _url_of(*schemes: str) -> AfterValidator:
    def check(url: str) -> str:
        if urlsplit(url).scheme not in schemes:
            raise ValueError(f"must be a URL that begins with {' or '.join(f'{s}://' for s in schemes)}")
        return url

    return AfterValidator(check)


DeploymentName = Annotated[str, _matching(r"[\w-]{1,100}", "must consist of up to 100 letters, digits, - and _")]
BuildId = Annotated[str, _matching(r"[\w.+-]{1,100}", "must consist of up to 100 letters, digits, ., +, - and _")]
Directory = Annotated[Path, AfterValidator(_absolute)]
Seconds = Annotated[float, Field(gt=0, le=10 * 365 * 86_400, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]


class Settings(BaseSettings):
    """The settings. They are read once and frozen, so that a process always sees the same values."""

    model_config = SettingsConfigDict(
        env_prefix="LOOM_",
        env_file=".env",
        env_ignore_empty=True,
        toml_file=TOML_FILE,
        extra="ignore",
        frozen=True,
        protected_namespaces=(),
    )

    model: str | None = Field(None, description="Default model for runs: openai:NAME, anthropic:NAME or demo.")
    fallback_models: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)] = Field(
        (), description="Comma-separated fallback models. Each one is used if the previous model doesn't respond."
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(
        None, description="Sampling temperature. None: the provider's default."
    )
    max_output_tokens: Count = Field(8192, description="Maximum number of output tokens per model call.")
    rpm: Count | None = Field(None, description="Maximum number of requests per minute to each model. None: no limit.")
    tpm: Count | None = Field(None, description="Maximum number of tokens per minute to each model. None: no limit.")
    breaker_failures: Annotated[Annotated[int, Field(ge=1, le=20)] | None, BeforeValidator(_off)] = Field(
        5,
        description="Stop calling a model after this many failures in its last 20 calls, if half of them failed. off:"
        " never stop.",
    )
    breaker_seconds: Seconds = Field(
        60, description="Maximum number of seconds between two probes of a model that isn't called."
    )

    temporal_address: Annotated[str, AfterValidator(_host_and_port)] = Field(
        "localhost:7233",
        validation_alias=_named("TEMPORAL_ADDRESS"),
        description="HOST:PORT of the Temporal frontend, or unix:/PATH.",
    )
    temporal_namespace: str = Field(
        "default", validation_alias=_named("TEMPORAL_NAMESPACE"), description="Namespace of all runs."
    )
    temporal_api_key: SecretStr | None = Field(
        None, validation_alias=_named("TEMPORAL_API_KEY"), description="API key for Temporal Cloud. Enables TLS."
    )
    temporal_tls: bool = Field(
        default=False, validation_alias=_named("TEMPORAL_TLS"), description="Use TLS to connect to Temporal."
    )
    task_queue: str = Field(
        "loom", min_length=1, pattern="^[^']*$", description="Task queue for workflows and activities."
    )
    deployment: Annotated[DeploymentName | None, BeforeValidator(_off)] = Field(
        None, description="Worker deployment to which this worker belongs. None or off: the worker isn't versioned."
    )
    build: BuildId | None = Field(
        None, validate_default=True, description="Build id: the version of this worker within its deployment."
    )
    database_url: Annotated[str, _url_of("postgresql", "postgres")] | None = Field(
        None, repr=False, description="Postgres with pgvector. Required for memory, the ledger and search."
    )
    redis_url: Annotated[str, _url_of("redis", "rediss", "unix")] | None = Field(
        None,
        repr=False,
        description="Redis for live events and transcripts. Runs work without it but don't publish events.",
    )
    redis_timeout: Seconds = Field(
        1.0, description="Seconds to wait for Redis before a run continues without it and skips its live events."
    )
    redis_server: Annotated[Path, AfterValidator(_absolute)] | None = Field(
        None, description="Redis or Valkey server that `loom up` starts. None: the packaged one, or else one on PATH."
    )
    home: Directory = Field(
        Path(".loom"), validate_default=True, description="Directory for the embedded stack's state."
    )
    signing_key: Directory | None = Field(
        None, description="File of the key that signs requests to runs. None: signing.key in LOOM_HOME."
    )
    private: Literal["on", "off"] = Field(
        "off", description="on: only your own processes reach the Temporal server that `loom up` starts."
    )
    require_signed: Literal["on", "off"] = Field(
        "off", description="on: this worker accepts only signed runs, and these accept only signed requests."
    )

    workspace: Directory = Field(default_factory=Path.cwd, description="Default working directory for tools.")
    workspaces: Annotated[tuple[Directory, ...] | None, NoDecode, BeforeValidator(_as_in_path)] = Field(
        None, description="Folders, separated as in PATH, in which runs' workspaces must be. None: `workspace`."
    )
    max_mode: Mode = Field(Mode.ACCEPT_EDITS, description="Most permissive mode that a run may have.")
    max_turns: Count = Field(50, description="Default maximum number of turns per run.")
    context_window: Annotated[int, Field(ge=1000)] = Field(
        200_000, description="Size of the model's context window in tokens."
    )
    collapse_at: Share = Field(
        0.5, description="Shorten old tool results if the context exceeds this share of the window."
    )
    warn_at: Share = Field(
        0.8, description="Warn the model and people if the context exceeds this share of the window."
    )
    compress_at: Share = Field(
        0.92, description="Compress the conversation if the context exceeds this share of the window."
    )
    compress_target: Share = Field(0.75, description="Maximum share of a conversation that remains after compression.")
    section_tokens: Count = Field(
        512, description="Tokens for each of the eight sections of a compressed conversation."
    )
    loop_window: Annotated[int, Field(ge=0)] = Field(
        5, description="Stop a run after this number of turns with identical calls and results. 0: never."
    )
    evaluation: Literal["on", "off"] = Field(
        "off", description="on: the model rates each run's answer, which takes one additional model call."
    )
    tool_timeout: Seconds = Field(120, description="Default timeout of a tool call in seconds.")
    parallel_limit: Count = Field(
        10, description="Maximum number of read-only tool calls that a turn runs concurrently."
    )
    unknown_price: Literal["deny", "assume", "free"] = Field(
        "deny", description="Models without a known price: deny dollar budgets, assume a high price, or count as free."
    )
    prices: Annotated[dict[str, ModelPrice], BeforeValidator(_known_prices), AfterValidator(_prices)] = Field(
        default_factory=dict,
        description='Prices of your own models: the tables [prices."PREFIX:NAME"], or JSON. See docs/models.md.',
    )
    max_depth: Annotated[int, Field(ge=0, le=20)] = Field(
        3, description="Maximum number of sub-agent levels. 0: no sub-agents."
    )
    max_children: Annotated[int, Field(ge=0, le=1000)] = Field(
        20, description="Maximum number of sub-agents in a run's entire tree."
    )
    approval_timeout: Seconds = Field(
        604_800, description="Seconds that a call waits for a person's approval before it is denied."
    )
    model_attempts: Count = Field(
        3, description="Attempts at a model call before a fallback model takes over, or the run waits or fails."
    )
    first_retry_delay: Seconds = Field(
        1.0, description="Seconds between the first two attempts. The delay doubles for each further attempt."
    )
    longest_retry_delay: Seconds = Field(60.0, description="Longest delay in seconds between two attempts.")
    model_timeout: Seconds = Field(
        120, description="Seconds without data from a provider after which an attempt has failed."
    )
    patience: Annotated[float, Field(ge=0, le=LONGEST_RUN)] = Field(
        86_400, description="Seconds that a run waits for a provider, or for a person to restore access. 0: never wait."
    )
    embedder: str = Field(
        "auto", description="Embedding model: auto, offline, off, openai:MODEL or openai:MODEL@DIMENSION."
    )
    memory: Literal["on", "off"] = Field(
        "on", description="off: runs don't store memories, even if there is a database."
    )
    memory_model: str | None = Field(
        None,
        description="Model that extracts facts from long texts. off: use their first sentences. None: use `model`.",
    )
    memory_limits: MemorySettings = Field(
        default_factory=MemorySettings, description="Memory limits and retention: the table [memory_limits], or JSON."
    )
    tenants: Annotated[dict[str, TenantLimits], BeforeValidator(_known_limits), AfterValidator(_tenants)] = Field(
        default_factory=dict, description="Limits of tenants: the tables [tenants.NAME], or JSON. See docs/tenants.md."
    )
    sandbox: Literal["on", "off"] = Field("on", description="off: tools run without isolation, at your own risk.")
    sandbox_readable: Annotated[
        tuple[Directory, ...], NoDecode, BeforeValidator(_listed), AfterValidator(_unlinked)
    ] = Field((), description="Comma-separated folders that commands may read besides the workspace and the system.")
    sandbox_environment: Directory | None = Field(
        None, description="Virtual environment whose programs and packages commands find before those of the system."
    )
    sandbox_memory: Count = Field(
        4 * 1024**3, description="Maximum memory in bytes for a command with all its processes."
    )
    sandbox_processes: Count = Field(512, description="Maximum number of processes and threads per command.")
    sandbox_cpu: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        2.0, description="CPU seconds that a command may use for each second of its timeout."
    )
    sandbox_disk: Count = Field(8 * 1024**3, description="Maximum number of bytes that a command may write to disk.")
    sandbox_file_size: Count = Field(
        2 * 1024**3, description="Maximum size in bytes of any file that a command writes."
    )
    sandbox_temporary: Count = Field(1024**3, description="Size of /tmp in the sandbox in bytes.")
    sandbox_open_files: Count = Field(4096, description="Maximum number of open files for each process of a command.")
    snapshots: Literal["on", "off", "required"] = Field(
        "on", description="Save workspaces before each change. required: reject changes if that isn't possible."
    )
    fetch_allow: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed), AfterValidator(_opening)] = Field(
        (), description="Comma-separated hosts and networks that http_fetch may access although they aren't public."
    )
    trusted_folders: Annotated[tuple[Directory, ...], NoDecode, BeforeValidator(_listed)] = Field(
        (), description="Comma-separated folders. Workspaces inside them may provide their own skills."
    )
    skills_home: Annotated[Directory | None, BeforeValidator(_off)] = Field(
        default_factory=Path.home,
        description="Home directory whose skills are available to all runs. off: no such skills.",
    )
    dynamic_tools: Literal["on", "off"] = Field(
        "off", description="on: agents may create tools at run time, with approval."
    )
    app: str | None = Field(None, description="Module with your own tools and agents: package.module:app.")
    agents: Annotated[tuple[Directory, ...], NoDecode, BeforeValidator(_listed), AfterValidator(_there)] = Field(
        (), description="Comma-separated folders of agent files, besides .loom/agents and the folder next to the app."
    )
    crews: Annotated[tuple[Directory, ...], NoDecode, BeforeValidator(_listed), AfterValidator(_there)] = Field(
        (), description="Comma-separated folders of crew files, besides .loom/crews and the folder next to the app."
    )
    packages: str = Field("", description="Comma-separated installed packages whose tools are loaded. *: all packages.")
    mcp: Annotated[dict[str, Any], AfterValidator(_servers)] = Field(
        default_factory=dict, description="MCP servers: the tables [mcp.NAME] in loom.toml. See docs/mcp.md."
    )
    on_changed_manifest: Literal["keep", "refuse"] = Field(
        "keep", description="Whether to keep or refuse a run whose pinned tools or prompts differ from the worker's."
    )
    rotate_after_events: Annotated[int, Field(ge=100, le=40_000)] = Field(
        4000, description="A run continues as new at this history length, or earlier if Temporal suggests it."
    )

    max_cached_workflows: Annotated[int, Field(ge=0)] = Field(
        1000, description="Number of runs that a worker caches. If more runs are active, they are five times slower."
    )
    max_concurrent_activities: Count = Field(
        100, description="Maximum number of concurrent model and tool calls per worker."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Minimum log level.")
    log_format: Literal["json", "console"] = Field(
        "json", description="json: one object per line. console: readable text."
    )
    metrics_port: Annotated[Annotated[int, Field(ge=0, le=65535)] | None, BeforeValidator(_off)] = Field(
        9091,
        description="Prometheus port of the worker. 0: any free port, also if the default is taken. off: no metrics.",
    )

    openai_api_key: SecretStr | None = Field(
        None, validation_alias=_named("OPENAI_API_KEY"), description="API key for openai:* models."
    )
    openai_base_url: Annotated[str, _url_of("http", "https")] | None = Field(
        None,
        validation_alias=_named("OPENAI_BASE_URL"),
        description="URL of another server that implements OpenAI's API.",
    )
    anthropic_api_key: SecretStr | None = Field(
        None, validation_alias=_named("ANTHROPIC_API_KEY"), description="API key for anthropic:* models."
    )
    anthropic_base_url: Annotated[str, _url_of("http", "https")] | None = Field(
        None,
        validation_alias=_named("ANTHROPIC_BASE_URL"),
        description="URL of another server that implements Anthropic's API.",
    )

    @field_validator("build")
    @classmethod
    def _named_with_its_deployment(cls, build: str | None, info: ValidationInfo) -> str | None:
        if build is None and info.data.get("deployment") is not None:
            raise ValueError("must be set together with LOOM_DEPLOYMENT, for example to a release or a commit")
        return build

    @property
    def remembers(self) -> bool:
        """Whether runs store memories, which requires a database."""
        return self.memory == "on" and self.database_url is not None

    @property
    def roots(self) -> tuple[Path, ...]:
        """The folders in which runs' workspaces must be."""
        return (self.workspace,) if self.workspaces is None else self.workspaces

    @property
    def bounds(self) -> Bounds:
        """The workspaces and modes that a worker serves, whoever starts the run."""
        return Bounds(roots=tuple(str(root.resolve()) for root in self.roots), max_mode=self.max_mode)

    @property
    def owner_bounds(self) -> Bounds:
        """The workspaces and modes that a worker serves if the owner of its key starts the run: those that were set."""
        workspaces, has_mode = self.workspaces, "max_mode" in self.model_fields_set
        return Bounds(
            roots=None if workspaces is None else tuple(str(root.resolve()) for root in workspaces),
            max_mode=self.max_mode if has_mode else Mode.BYPASS,
        )

    @property
    def key_path(self) -> Path:
        """The file of the key that signs requests to runs."""
        return self.signing_key or self.home / "signing.key"

    @property
    def private_paths(self) -> tuple[Path, ...]:
        """Loom's own state and its key, which no command may see."""
        return self.home, self.key_path

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
