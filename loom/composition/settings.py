"""All settings, with their defaults and environment variables.

Values are read from the following sources, in order of precedence: the environment, `.env` in the working directory,
`loom.toml` in the working directory, the addresses of a running embedded stack, and the defaults. The keys in
`loom.toml` are the field names of `Settings`. `loom/composition/load_settings.py` reads the values. An empty variable
counts as not set. Unless a field specifies another name, its environment variable is `LOOM_` followed by the field's
name.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from loom.composition import setting_values as values
from loom.composition.client_settings import ClientSettings, named
from loom.composition.setting_values import (
    BuildId,
    Count,
    DeploymentName,
    Directory,
    Prices,
    Seconds,
    Share,
    Tenants,
    WebUrl,
)
from loom.domain.agents.limits import MOST_KEPT_TURNS, MOST_TOOL_ATTEMPTS
from loom.domain.core.errors import BadRequest
from loom.domain.core.notifications import EVENTS, NotifyEvent
from loom.domain.core.requests import LONGEST_RUN
from loom.domain.core.suggestions import nearest
from loom.domain.permissions.bounds import Bounds
from loom.domain.permissions.judge import Mode
from loom.domain.tools.sandbox_limits import Limits

TOML_FILE = "loom.toml"

Listed = Annotated[tuple[str, ...], NoDecode, BeforeValidator(values.listed)]
Folders = Annotated[tuple[Directory, ...], NoDecode, BeforeValidator(values.listed), AfterValidator(values.there)]


def _deployed(variable: str, in_cluster: str) -> AliasChoices:
    """Return the names of a setting that Temporal's Worker Controller sets, too, under the second name."""
    return AliasChoices(variable, in_cluster, variable.removeprefix("LOOM_").lower())


class Settings(ClientSettings, BaseSettings):
    """All settings. They are read once and frozen, so that a process always sees the same values."""

    model_config = SettingsConfigDict(
        env_prefix="LOOM_",
        env_file=".env",
        env_ignore_empty=True,
        toml_file=TOML_FILE,
        extra="ignore",
        frozen=True,
        protected_namespaces=(),
    )

    model: str | None = Field(default=None, description="Default model for runs: openai:NAME, anthropic:NAME or demo.")
    fallback_models: Listed = Field(
        default=(),
        description="Comma-separated fallback models. Each one is used if the previous model doesn't respond.",
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(
        default=None, description="Sampling temperature. None: the provider's default."
    )
    max_output_tokens: Count = Field(default=8192, description="Maximum number of output tokens per model call.")
    rpm: Count | None = Field(
        default=None, description="Maximum number of requests per minute to each model. None: no limit."
    )
    tpm: Count | None = Field(
        default=None, description="Maximum number of tokens per minute to each model. None: no limit."
    )
    breaker_failures: Annotated[Annotated[int, Field(ge=1, le=20)] | None, BeforeValidator(values.off)] = Field(
        default=5,
        description="Stop calling a model after this many failures in its last 20 calls, if half of them failed. off:"
        " never stop.",
    )
    breaker_seconds: Seconds = Field(
        default=60, description="Maximum number of seconds between two probes of a model that isn't called."
    )

    deployment: Annotated[DeploymentName | None, BeforeValidator(values.off)] = Field(
        default=None,
        validation_alias=_deployed("LOOM_DEPLOYMENT", "TEMPORAL_DEPLOYMENT_NAME"),
        description="Worker deployment to which this worker belongs. None or off: the worker isn't versioned.",
    )
    build: BuildId | None = Field(
        default=None,
        validate_default=True,
        validation_alias=_deployed("LOOM_BUILD", "TEMPORAL_WORKER_BUILD_ID"),
        description="Build id: the version of this worker within its deployment.",
    )
    redis_timeout: Seconds = Field(
        default=1.0,
        description="Seconds to wait for Redis before a run continues without it and skips its live events.",
    )
    task_requests: Literal["on", "off"] = Field(
        default="off",
        description="on: Tasks on the bus with the action `execute` start runs of this worker's agents and crews."
        " Anyone who can write to the bus can then start runs.",
    )
    redis_server: Annotated[Path, AfterValidator(values.absolute)] | None = Field(
        default=None,
        description="Redis or Valkey server that `loom up` starts. None: the packaged one, or else one on PATH.",
    )
    approval_keys: Directory | None = Field(
        default=None,
        description="File of the public keys with which a worker verifies approvals. None: approvals need no proof.",
    )
    codec_endpoint: WebUrl | None = Field(
        default=None,
        description="Address of the codec server for the Web UI that `loom up` starts. See docs/encryption.md.",
    )
    private: Literal["on", "off"] = Field(
        default="off", description="on: only your own processes reach the Temporal server that `loom up` starts."
    )
    spare_worker: Literal["on", "off"] = Field(
        default="on",
        description="on: `loom up` keeps a second worker process loaded, which replaces a dead worker at once. off:"
        " there is no spare, which saves about 120 MB of memory.",
    )
    require_signed: Literal["on", "off"] = Field(
        default="off", description="on: this worker accepts only signed runs, and these accept only signed requests."
    )

    workspace: Directory = Field(default_factory=Path.cwd, description="Default working directory for tools.")
    workspaces: Annotated[tuple[Directory, ...] | None, NoDecode, BeforeValidator(values.as_in_path)] = Field(
        default=None, description="Folders, separated as in PATH, in which runs' workspaces must be. None: `workspace`."
    )
    run_workspaces: Directory | None = Field(
        default=None,
        description="Folder for the clones that runs work in. It must have the same path on all workers, and machines"
        " must not share it. None: `workspaces` in LOOM_HOME.",
    )
    repositories: Annotated[Listed, AfterValidator(values.repositories)] = Field(
        default=(),
        description="Comma-separated URLs of the Git repositories that runs may clone, or of folders that contain"
        " them.",
    )
    push_repositories: Annotated[Listed, AfterValidator(values.repositories)] = Field(
        default=(),
        description="Comma-separated URLs of the Git repositories that runs may push to, or of folders that contain"
        " them.",
    )
    push_ci_files: Literal["on", "off"] = Field(
        default="off",
        description="on: runs also push changes to files that a Git host runs as CI, such as `.github/workflows`.",
    )
    max_mode: Mode = Field(default=Mode.ACCEPT_EDITS, description="Most permissive mode that a run may have.")
    max_turns: Count = Field(default=50, description="Default maximum number of turns per run.")
    context_window: Annotated[int, Field(ge=1000)] = Field(
        default=200_000, description="Size of the model's context window in tokens."
    )
    collapse_at: Share = Field(
        default=0.5, description="Shorten old tool results if the context exceeds this share of the window."
    )
    warn_at: Share = Field(
        default=0.8, description="Warn the model and people if the context exceeds this share of the window."
    )
    compress_at: Share = Field(
        default=0.92, description="Compress the conversation if the context exceeds this share of the window."
    )
    compress_target: Share = Field(
        default=0.75, description="Maximum share of a conversation that remains after compression."
    )
    section_tokens: Count = Field(
        default=512, description="Tokens for each of the eight sections of a compressed conversation."
    )
    keep_turns: Annotated[int, Field(ge=1, le=MOST_KEPT_TURNS)] = Field(
        default=1, description="Number of last turns that a compression keeps word for word."
    )
    loop_window: Annotated[int, Field(ge=0)] = Field(
        default=5, description="Stop a run after this number of turns with identical calls and results. 0: never."
    )
    evaluation: Literal["on", "off"] = Field(
        default="off", description="on: the model rates each run's answer, which takes one additional model call."
    )
    tool_timeout: Seconds = Field(default=120, description="Default timeout of a tool call in seconds.")
    parallel_limit: Count = Field(
        default=10, description="Maximum number of read-only tool calls that a turn runs concurrently."
    )
    python_sessions: Count = Field(
        default=16, description="Maximum number of runs whose Python variables a worker keeps between calls."
    )
    python_idle: Seconds = Field(
        default=900, description="Seconds without a call after which a run's Python interpreter ends."
    )
    shown_tools: Annotated[int, Field(ge=0)] = Field(
        default=60,
        description="Maximum number of tools that a model is shown. If there are more, it searches for the others.",
    )
    shown_tool_tokens: Annotated[int, Field(ge=0)] = Field(
        default=8_000, description="Maximum number of tokens in the descriptions of the tools that a model is shown."
    )
    unknown_price: Literal["deny", "assume", "free"] = Field(
        default="deny",
        description="Models without a known price: deny dollar budgets, assume a high price, or count as free.",
    )
    prices: Prices = Field(
        default_factory=dict,
        description='Prices of your own models: the tables [prices."PREFIX:NAME"], or JSON. See docs/models.md.',
    )
    max_depth: Annotated[int, Field(ge=0, le=20)] = Field(
        default=3, description="Maximum number of sub-agent levels. 0: no sub-agents."
    )
    max_children: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=20, description="Maximum number of sub-agents in a run's entire tree."
    )
    approval_timeout: Seconds = Field(
        default=604_800, description="Seconds that a call waits for a person's approval before it is denied."
    )
    model_attempts: Count = Field(
        default=3, description="Attempts at a model call before a fallback model takes over, or the run waits or fails."
    )
    first_retry_delay: Seconds = Field(
        default=1.0, description="Seconds between the first two attempts. The delay doubles for each further attempt."
    )
    longest_retry_delay: Seconds = Field(default=60.0, description="Longest delay in seconds between two attempts.")
    tool_attempts: Annotated[int, Field(ge=1, le=MOST_TOOL_ATTEMPTS)] = Field(
        default=1, description="Attempts at a call that fails, for tools that only read or are idempotent."
    )
    model_timeout: Seconds = Field(
        default=120, description="Seconds without data from a provider after which an attempt has failed."
    )
    patience: Annotated[float, Field(ge=0, le=LONGEST_RUN)] = Field(
        default=86_400,
        description="Seconds that a run waits for a provider, or for a person to restore access. 0: never wait.",
    )
    embedder: str = Field(
        default="auto", description="Embedding model: auto, offline, off, openai:MODEL or openai:MODEL@DIMENSION."
    )
    audit: Literal["on", "off"] = Field(
        default="on",
        description="off: nothing is recorded in the audit log, even if there is a database. See docs/audit.md.",
    )
    memory: Literal["on", "off"] = Field(
        default="on", description="off: runs don't store memories, even if there is a database."
    )
    memory_model: str | None = Field(
        default=None,
        description="Model that extracts facts from long texts. off: use their first sentences. None: use `model`.",
    )
    tenants: Tenants = Field(
        default_factory=dict, description="Limits of tenants: the tables [tenants.NAME], or JSON. See docs/tenants.md."
    )
    sandbox: Literal["on", "off"] = Field(
        default="on", description="off: tools run without isolation, at your own risk."
    )
    sandbox_readable: Annotated[
        tuple[Directory, ...], NoDecode, BeforeValidator(values.listed), AfterValidator(values.unlinked)
    ] = Field(
        default=(), description="Comma-separated folders that commands may read besides the workspace and the system."
    )
    sandbox_environment: Directory | None = Field(
        default=None,
        description="Virtual environment whose programs and packages commands find before those of the system.",
    )
    sandbox_memory: Count = Field(
        default=4 * 1024**3, description="Maximum memory in bytes for a command with all its processes."
    )
    sandbox_processes: Count = Field(default=512, description="Maximum number of processes and threads per command.")
    sandbox_cpu: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=2.0, description="CPU seconds that a command may use for each second of its timeout."
    )
    sandbox_disk: Count = Field(
        default=8 * 1024**3, description="Maximum number of bytes that a command may write to disk."
    )
    sandbox_file_size: Count = Field(
        default=2 * 1024**3, description="Maximum size in bytes of any file that a command writes."
    )
    sandbox_temporary: Count = Field(default=1024**3, description="Size of /tmp in the sandbox in bytes.")
    sandbox_open_files: Count = Field(
        default=4096, description="Maximum number of open files for each process of a command."
    )
    snapshots: Literal["on", "off", "required"] = Field(
        default="on", description="Save workspaces before each change. required: reject changes if that isn't possible."
    )
    fetch_allow: Annotated[Listed, AfterValidator(values.opening)] = Field(
        default=(),
        description="Comma-separated hosts and networks that http_fetch may access although they aren't public.",
    )
    trusted_folders: Annotated[tuple[Directory, ...], NoDecode, BeforeValidator(values.listed)] = Field(
        default=(), description="Comma-separated folders. Workspaces inside them may provide their own skills."
    )
    skills_home: Annotated[Directory | None, BeforeValidator(values.off)] = Field(
        default_factory=Path.home,
        description="Home directory whose skills are available to all runs. off: no such skills.",
    )
    dynamic_tools: Literal["on", "off"] = Field(
        default="off", description="on: agents may create tools at run time, with approval."
    )
    app: str | None = Field(default=None, description="Module with your own tools and agents: package.module:app.")
    agents: Folders = Field(
        default=(),
        description="Comma-separated folders of agent files, besides .loom/agents and the folder next to the app.",
    )
    crews: Folders = Field(
        default=(),
        description="Comma-separated folders of crew files, besides .loom/crews and the folder next to the app.",
    )
    packages: str = Field(
        default="", description="Comma-separated installed packages whose tools are loaded. *: all packages."
    )
    mcp: Annotated[dict[str, Any], AfterValidator(values.servers)] = Field(
        default_factory=dict, description="MCP servers: the tables [mcp.NAME] in loom.toml. See docs/mcp.md."
    )
    on_changed_manifest: Literal["keep", "refuse"] = Field(
        default="keep",
        description="Whether to keep or refuse a run whose pinned tools or prompts differ from the worker's.",
    )
    rotate_after_events: Annotated[int, Field(ge=100, le=40_000)] = Field(
        default=4000, description="A run continues as new at this history length, or earlier if Temporal suggests it."
    )

    quick_reads: bool = Field(
        default=True,
        description="Whether quick tools run in the activity that called the model. See docs/tools.md#quick-tools.",
    )
    max_cached_workflows: Annotated[int, Field(ge=0)] = Field(
        default=1000,
        description="Number of runs that a worker caches. If more runs are active, they are five times slower.",
    )
    max_cached_waits: Count = Field(
        default=50, description="Number of cached runs that wait for a person. Others are restored when they continue."
    )
    max_concurrent_activities: Count = Field(
        default=100, description="Maximum number of concurrent model and tool calls per worker."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="Minimum log level.")
    log_format: Literal["json", "console"] = Field(
        default="json", description="json: one object per line. console: readable text."
    )
    metrics_host: str = Field(
        default="127.0.0.1",
        description="Address at which the worker serves metrics. Use 0.0.0.0 if Prometheus runs on another machine.",
    )
    metrics_port: Annotated[Annotated[int, Field(ge=0, le=65535)] | None, BeforeValidator(values.off)] = Field(
        default=9091,
        description="Prometheus port of the worker. 0: any free port, also if the default is taken. off: no metrics.",
    )

    approval_policy: Directory | None = Field(
        default=None, description="TOML file that says who may approve which calls over HTTP. See docs/access.md."
    )
    temporal_ui: Annotated[str, AfterValidator(values.web_address)] | None = Field(
        default=None,
        description="URL of Temporal's Web UI, to which the web page links. None: the stack's own, if it runs here.",
    )
    serve_port: Annotated[Annotated[int, Field(ge=0, le=65535)] | None, BeforeValidator(values.off)] = Field(
        default=8000,
        description="Port of the HTTP service. 0: any free port, which `loom up` also uses if 8000 is taken. off:"
        " `loom up` starts no service.",
    )
    serve_origins: Annotated[Listed, AfterValidator(values.origins)] = Field(
        default=(),
        description="Comma-separated origins, such as https://ops.example, whose pages may call the HTTP API.",
    )
    serve_streams: int = Field(
        default=2000,
        ge=1,
        description="Most event streams and waiting requests that one caller of the HTTP API may have open at once.",
    )
    oidc_issuer: Annotated[str, AfterValidator(values.issuer)] | None = Field(
        default=None, description="URL of the OpenID Connect issuer whose tokens the HTTP API accepts."
    )
    oidc_audience: str | None = Field(
        default=None, min_length=1, validate_default=True, description="Audience that the issuer's tokens must have."
    )
    oidc_keys_url: Annotated[str, AfterValidator(values.issuer)] | None = Field(
        default=None, description="URL of the issuer's keys (JWKS). None: the issuer's configuration names it."
    )
    oidc_name_claim: str = Field(default="sub", min_length=1, description="Claim that names the caller.")
    oidc_role_claim: str = Field(
        default="loom_role", min_length=1, description="Claim that contains the caller's role."
    )
    oidc_tenant_claim: str | None = Field(
        default=None,
        min_length=1,
        description="Claim that contains the caller's tenant. None: callers see all tenants.",
    )
    notify_url: Annotated[SecretStr, AfterValidator(values.webhook_url)] | None = Field(
        default=None,
        description="URL for notifications about approvals, questions and ended runs, such as a Slack webhook.",
    )
    notify_secret: Annotated[SecretStr, AfterValidator(values.webhook_secret)] | None = Field(
        default=None, description="Secret that signs what these URLs receive, as whsec_BASE64 of 24 to 64 random bytes."
    )
    notify_command: Annotated[tuple[str, ...], NoDecode, BeforeValidator(values.words)] = Field(
        default=(), description="Command that receives each notification as JSON on its standard input."
    )
    notify_on: Annotated[tuple[NotifyEvent, ...], NoDecode, BeforeValidator(values.known_events)] = Field(
        default=EVENTS, description="Comma-separated events to send: ask, question, parked, ended and failed."
    )
    notify_escalate_url: Annotated[SecretStr, AfterValidator(values.webhook_url)] | None = Field(
        default=None, description="URL for approvals, questions and parked runs that nobody has answered in time."
    )
    notify_escalate_after: Seconds = Field(default=900, description="Seconds after which Loom notifies that URL.")

    otlp_endpoint: WebUrl | None = Field(
        default=None,
        validation_alias=named("OTEL_EXPORTER_OTLP_ENDPOINT"),
        description="URL of an OTLP receiver (HTTP) for traces. Needs the extra `otel` and LOOM_REDIS_URL.",
    )
    otlp_delay: Count = Field(
        default=5000,
        validation_alias=named("OTEL_BSP_SCHEDULE_DELAY"),
        description="Interval in milliseconds at which a worker exports spans. Each export takes some of its CPU time.",
    )
    otlp_content: Annotated[bool, BeforeValidator(values.in_spans)] = Field(
        default=False,
        validation_alias=named("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"),
        description="Whether traces contain answers, and the arguments and results of tool calls.",
    )

    openai_api_key: SecretStr | None = Field(
        default=None, validation_alias=named("OPENAI_API_KEY"), description="API key for openai:* models."
    )
    openai_base_url: WebUrl | None = Field(
        default=None,
        validation_alias=named("OPENAI_BASE_URL"),
        description="URL of another server that implements OpenAI's API.",
    )
    anthropic_api_key: SecretStr | None = Field(
        default=None, validation_alias=named("ANTHROPIC_API_KEY"), description="API key for anthropic:* models."
    )
    anthropic_base_url: WebUrl | None = Field(
        default=None,
        validation_alias=named("ANTHROPIC_BASE_URL"),
        description="URL of another server that implements Anthropic's API.",
    )

    @field_validator("build")
    @classmethod
    def _named_with_its_deployment(cls, build: str | None, info: ValidationInfo) -> str | None:
        if build is None and info.data.get("deployment") is not None:
            raise ValueError("must be set together with LOOM_DEPLOYMENT, for example to a release or a commit")
        return build

    @field_validator("oidc_audience")
    @classmethod
    def _with_its_issuer(cls, audience: str | None, info: ValidationInfo) -> str | None:
        if audience is None and info.data.get("oidc_issuer") is not None:
            raise ValueError(
                "must be set together with LOOM_OIDC_ISSUER, so that tokens for other services aren't valid"
            )
        return audience

    @property
    def audits(self) -> bool:
        """Whether acts are recorded in the audit log, which requires a database."""
        return self.audit == "on" and self.database_url is not None

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
    def private_paths(self) -> tuple[Path, ...]:
        """Loom's own state, its keys, and the clones of other runs, which no command may see."""
        others = (self.run_workspaces, self.encryption_keys, self.approval_key)
        return (self.home, self.key_path, *(path for path in others if path is not None))

    @property
    def clones_folder(self) -> Path:
        """The folder of the clones that runs work in."""
        return self.run_workspaces or self.home / "workspaces"

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
        """Set the order of precedence: arguments, the environment, `.env`, then `loom.toml`. Raises BadRequest if an
        argument isn't a field.
        """
        known = {*cls.model_fields, *(name for field in cls.model_fields for name in cls._aliases(field))}
        if unknown := next((name for name in init_settings() if name not in known), None):
            advice = nearest(unknown, cls.model_fields, "`help(loom.Settings)` lists the fields")
            raise BadRequest(f"loom.Settings has no field {unknown!r}: {advice}", field=unknown)
        toml = TomlConfigSettingsSource(settings_cls)
        return init_settings, env_settings, dotenv_settings, toml
