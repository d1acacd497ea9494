"""The settings of a client: how it reaches the servers, and which keys it has.

`Settings` extends them with the settings of workers and commands. This module needs pydantic alone, so a program that
has no packages of a worker can use it. Unless a field specifies another name, its environment variable is `LOOM_`
followed by the field's name.
"""

import os
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from loom.composition import setting_values as values
from loom.composition.setting_values import Certificates, Directory, PostgresUrl, RedisUrl
from loom.composition.tls_files import check_key
from loom.domain.core.errors import BadRequest
from loom.domain.core.value_problems import problem_of_value
from loom.domain.memory.layers import MemorySettings
from loom.extras import PACKAGES, require
from loom.stack.found_home import find_home

_EXTRAS: Final = MappingProxyType(
    {
        "redis_url": "redis",
        "database_url": "postgres",
        "signing_key": "encryption",
        "approval_key": "encryption",
        "encryption_keys": "encryption",
    }
)
"""What a setting needs if it is set."""


def named(variable: str) -> AliasChoices:
    """Return the names of a setting: the variable's usual name, that name with Loom's prefix, and the TOML key."""
    return AliasChoices(variable, f"LOOM_{variable}", variable.lower())


class ClientSettings(BaseModel):
    """What a client needs to reach its servers. The settings are frozen.

    `ClientSettings(temporal_address=…)` has only what you pass. `ClientSettings.from_environment()` reads the
    environment.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    temporal_address: Annotated[str, AfterValidator(values.host_and_port)] = Field(
        default="localhost:7233",
        validation_alias=named("TEMPORAL_ADDRESS"),
        description="HOST:PORT of the Temporal server, or unix:/PATH. If it isn't set, Loom uses the stack's server.",
    )
    temporal_namespace: str = Field(
        default="default", validation_alias=named("TEMPORAL_NAMESPACE"), description="Namespace of all runs."
    )
    temporal_api_key: SecretStr | None = Field(
        default=None,
        validation_alias=named("TEMPORAL_API_KEY"),
        description="API key for Temporal Cloud. Enables TLS.",
    )
    temporal_tls: bool = Field(
        default=False, validation_alias=named("TEMPORAL_TLS"), description="Use TLS to connect to Temporal."
    )
    temporal_tls_client_cert_path: Certificates | None = Field(
        default=None,
        validation_alias=named("TEMPORAL_TLS_CLIENT_CERT_PATH"),
        description="PEM file of this client's certificate for mTLS with Temporal. Enables TLS.",
    )
    temporal_tls_client_key_path: Directory | None = Field(
        default=None,
        validate_default=True,
        validation_alias=named("TEMPORAL_TLS_CLIENT_KEY_PATH"),
        description="PEM file of the certificate's private key.",
    )
    temporal_tls_server_ca_cert_path: Certificates | None = Field(
        default=None,
        validation_alias=named("TEMPORAL_TLS_SERVER_CA_CERT_PATH"),
        description="PEM file of the authority that signed the Temporal server's certificate. Enables TLS. None: the"
        " system's authorities.",
    )
    temporal_tls_server_name: str | None = Field(
        default=None,
        validation_alias=named("TEMPORAL_TLS_SERVER_NAME"),
        description="Name in the Temporal server's certificate, if it isn't the host in the address.",
    )
    task_queue: str = Field(
        default="loom", min_length=1, pattern=r"^[^'\\\x00]*$", description="Task queue for workflows and activities."
    )
    database_url: PostgresUrl | None = Field(
        default=None, repr=False, description="Postgres with pgvector. Required for memory, the ledger and search."
    )
    redis_url: RedisUrl | None = Field(
        default=None,
        repr=False,
        description="Redis for live events and transcripts. Runs work without it but don't publish events.",
    )
    bus_url: Annotated[str, values.bus_url] | None = Field(
        default=None,
        repr=False,
        description="Bus for Tasks between processes: nats://HOST:PORT, or in-process for handlers of this worker only."
        " None: Redis.",
    )
    home: Directory = Field(
        default_factory=find_home,
        description="Directory for the embedded stack's state. None: the nearest .loom that has one, or .loom here.",
    )
    signing_key: Directory | None = Field(
        default=None, description="File of the key that signs requests to runs. None: signing.key in LOOM_HOME."
    )
    approval_key: Directory | None = Field(
        default=None,
        description="File of the private key that proves approvals. Workers must not have it. See docs/access.md.",
    )
    encryption_keys: Directory | None = Field(
        default=None, description="File of the keys that encrypt the data of runs. None: nothing is encrypted."
    )
    memory_limits: Annotated[MemorySettings, BeforeValidator(values.from_json)] = Field(
        default_factory=MemorySettings, description="Memory limits and retention: the table [memory_limits], or JSON."
    )

    @model_validator(mode="wrap")
    @classmethod
    def _in_words(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Raise BadRequest for invalid values. The values themselves are omitted because they may be secrets. Raise it
        also if a package is missing that a value needs.
        """
        try:
            settings = handler(given)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_input=False)
            said = "; ".join(f"{cls._place(each['loc'])} {problem_of_value(each)}" for each in problems)
            raise BadRequest(said, field=cls._variable(problems[0]["loc"])) from None
        for field, extra in _EXTRAS.items():
            if getattr(settings, field) is not None:
                require(cls.names_of(field)[0], *PACKAGES[extra])
        if settings.bus_url not in (None, values.IN_PROCESS):
            require(cls.names_of("bus_url")[0], *PACKAGES["nats"])
        return settings

    @field_validator("temporal_tls_client_key_path")
    @classmethod
    def _with_its_certificate(cls, key: Path | None, info: ValidationInfo) -> Path | None:
        if "temporal_tls_client_cert_path" not in info.data:
            return key  # the certificate is invalid, which is reported
        certificate: Path | None = info.data["temporal_tls_client_cert_path"]
        if certificate is None and key is None:
            return None
        if certificate is None or key is None:
            raise ValueError("must be set together with TEMPORAL_TLS_CLIENT_CERT_PATH")
        return check_key(key, certificate)

    @property
    def uses_tls(self) -> bool:
        """Whether connections to Temporal use TLS. An API key or a certificate enables it."""
        own = (self.temporal_api_key, self.temporal_tls_client_cert_path, self.temporal_tls_server_ca_cert_path)
        return self.temporal_tls or any(each is not None for each in own)

    @property
    def key_path(self) -> Path:
        """The file of the key that signs requests to runs."""
        return self.signing_key or self.home / "signing.key"

    @classmethod
    def from_environment(cls) -> Self:
        """Return the settings in the environment. An empty variable counts as not set.

        Raises BadRequest if a value is invalid. The error names the variable and describes the problem.
        """
        environment = {name.lower(): value for name, value in os.environ.items() if value}
        names = {field: map(str.lower, cls.names_of(field)) for field in cls.model_fields}
        found = {field: next(filter(None, map(environment.get, each)), None) for field, each in names.items()}
        return cls.model_validate({field: value for field, value in found.items() if value is not None})

    @classmethod
    def names_of(cls, field: str) -> tuple[str, ...]:
        """Return the variables that a setting is read from, the usual one first."""
        return cls._aliases(field) or (f"LOOM_{field.upper()}",)

    @classmethod
    def _aliases(cls, field: str) -> tuple[str, ...]:
        """Return the variables of a setting that has other names than the usual one, and its TOML key."""
        alias = cls.model_fields[field].validation_alias
        return (alias,) if isinstance(alias, str) else tuple(map(str, getattr(alias, "choices", ())))

    @classmethod
    def _place(cls, location: tuple[int | str, ...]) -> str:
        """Return the variable and, for a part of its value, which one."""
        variable, part = cls._variable(location), ".".join(map(str, location[1:]))
        return f"{variable}: {part}" if part else f"{variable}:"

    @classmethod
    def _variable(cls, location: tuple[int | str, ...]) -> str:
        name = str(location[0]) if location else ""
        if name.lower() in cls.model_fields:
            return cls.names_of(name.lower())[0]
        return name.upper() if name.upper().startswith(("LOOM_", "TEMPORAL_")) else f"LOOM_{name.upper()}"
