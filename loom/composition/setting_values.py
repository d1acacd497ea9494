"""What the values of settings may be: how text becomes a value, and which values are refused."""

import json
import math
import os
import re
import shlex
from base64 import b64decode
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from loom.composition.tls_files import POSTGRES_FILES, REDIS_FILES, check_certificates, check_files_of_url
from loom.domain.core.model_prices import ModelPrice
from loom.domain.core.notifications import EVENTS
from loom.domain.core.repositories import problem_of_address
from loom.domain.core.tenants import TENANT_NAME, TenantLimits
from loom.domain.tools.mcp_servers import read_servers
from loom.domain.web.addresses import read_opening


def absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def off(value: object) -> object:
    return None if value == "off" else value


def listed(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def from_json(value: object) -> object:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError("must be JSON") from None


def as_in_path(value: object) -> object:
    if not isinstance(value, str):
        return value
    if not (folders := tuple(filter(None, value.split(os.pathsep)))):
        raise ValueError("must name at least one folder")
    return folders


def there(folders: tuple[Path, ...]) -> tuple[Path, ...]:
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"there is no folder {folder}")
    return folders


def unlinked(folders: tuple[Path, ...]) -> tuple[Path, ...]:
    for folder in there(folders):
        if folder != folder.resolve():
            raise ValueError(f"{folder} leads through a link: name the folder itself, {folder.resolve()}")
    return folders


def opening(entries: tuple[str, ...]) -> tuple[str, ...]:
    read_opening(entries)
    return entries


def repositories(prefixes: tuple[str, ...]) -> tuple[str, ...]:
    for prefix in prefixes:
        # The beginning of a URL may end with its host.
        if problem := problem_of_address(f"{prefix.rstrip('/')}/any"):
            raise ValueError(f"{prefix!r} {problem}")
    return prefixes


def servers(tables: dict[str, Any]) -> dict[str, Any]:
    read_servers(tables)
    return tables


def known_limits(tables: object) -> object:
    for name, table in tables.items() if isinstance(tables, dict) else ():
        known = [field.name for field in fields(TenantLimits)]
        if isinstance(table, dict) and (unknown := [key for key in table if key not in known]):
            raise ValueError(f"unknown limit {name}.{unknown[0]}; known: {', '.join(known)}")
    return tables


def tenants(limits: dict[str, TenantLimits]) -> dict[str, TenantLimits]:
    for name, of in limits.items():
        if not re.match(TENANT_NAME, name):
            raise ValueError(
                f"{name!r} is not a valid name for a tenant: use letters, digits, dots, hyphens and underscores"
            )
        for field in fields(of):
            if (limit := getattr(of, field.name)) is not None and not 0 < limit < math.inf:
                raise ValueError(f"{name}.{field.name} must be a positive number")
    return limits


def known_prices(tables: object) -> object:
    known = [field.name for field in fields(ModelPrice)]
    for name, table in tables.items() if isinstance(tables, dict) else ():
        if isinstance(table, dict) and (unknown := [key for key in table if key not in known]):
            raise ValueError(f"unknown price {name}.{unknown[0]}; known: {', '.join(known)}")
    return tables


def prices(prices: dict[str, ModelPrice]) -> dict[str, ModelPrice]:
    for name, price in prices.items():
        if not re.fullmatch(r"[^:*]+:[^*]*\*?", name):
            raise ValueError(f"{name!r} is not a model: write PREFIX:NAME, or the start of such a name and a *")
        for field in fields(price):
            if (dollars := getattr(price, field.name)) is not None and not 0 <= dollars < math.inf:
                raise ValueError(f"{name}.{field.name} must be dollars per million tokens, at least 0")
    return prices


def in_spans(value: object) -> object:
    """Accept the words of OpenTelemetry's conventions, too. Loom exports spans, and no events."""
    words = {"span_only": True, "span_and_event": True, "event_only": False, "no_content": False}
    return words.get(str(value).lower(), value)


def host_and_port(address: str) -> str:
    if address.startswith("unix:/"):
        return address
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError("must be HOST:PORT, such as localhost:7233, or unix:/PATH")
    return address


def matching(pattern: str, rule: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text, re.ASCII):
            raise ValueError(rule)
        return text

    return AfterValidator(check)


def url_of(*schemes: str) -> AfterValidator:
    def check(url: str) -> str:
        if urlsplit(url).scheme not in schemes:
            raise ValueError(f"must be a URL that begins with {' or '.join(f'{s}://' for s in schemes)}")
        return url

    return AfterValidator(check)


def issuer(url: str) -> str:
    parts = urlsplit(url)
    is_local = parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
    if not parts.hostname or (parts.scheme != "https" and not is_local):
        raise ValueError("must be a URL that begins with https://")
    return url


def web_address(url: str) -> str:
    if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", url):
        raise ValueError("must be a URL that begins with https:// or http://")
    return url


def origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    for origin in origins:
        if not re.fullmatch(r"https?://[^/\s*]+", origin):
            raise ValueError(f"{origin!r} is not an origin: write the scheme and the host, such as https://ops.example")
    return origins


def webhook_url(given: SecretStr) -> SecretStr:
    parts = urlsplit(given.get_secret_value())
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:  # `port` checks its range
        raise ValueError("must be a URL that begins with http:// or https://")
    return given


def webhook_secret(given: SecretStr) -> SecretStr:
    secret = given.get_secret_value()
    try:
        key = b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        key = b""
    if not secret.startswith("whsec_") or not 24 <= len(key) <= 64:
        raise ValueError("must be whsec_ and 24 to 64 random bytes in base64: echo whsec_$(openssl rand -base64 32)")
    return given


def words(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise ValueError(f"can't be split into words ({error})") from None


def known_events(value: object) -> object:
    given = listed(value)
    if not isinstance(given, tuple | list):
        return given
    if unknown := [each for each in given if each not in EVENTS]:
        raise ValueError(f"{unknown[0]!r} is not an event: name some of {', '.join(EVENTS)}")
    return given


def url_with_files(names: tuple[str, str, str]) -> AfterValidator:
    def check(url: str) -> str:
        check_files_of_url(url, names)
        return url

    return AfterValidator(check)


IN_PROCESS = "in-process"


def checked_bus(url: str) -> str:
    if url != IN_PROCESS and urlsplit(url).scheme not in ("nats", "tls"):
        raise ValueError(f"must be a URL that begins with nats:// or tls://, or `{IN_PROCESS}`")
    return url


bus_url = AfterValidator(checked_bus)

DeploymentName = Annotated[str, matching(r"[\w/-]{1,100}", "must consist of up to 100 letters, digits, -, _ and /")]
BuildId = Annotated[str, matching(r"[\w.+-]{1,100}", "must consist of up to 100 letters, digits, ., +, - and _")]
Directory = Annotated[Path, AfterValidator(absolute)]
Certificates = Annotated[Directory, AfterValidator(check_certificates)]
Seconds = Annotated[float, Field(gt=0, le=10 * 365 * 86_400, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
WebUrl = Annotated[str, url_of("http", "https")]
PostgresUrl = Annotated[str, url_of("postgresql", "postgres"), url_with_files(POSTGRES_FILES)]
RedisUrl = Annotated[str, url_of("redis", "rediss", "unix"), url_with_files(REDIS_FILES)]
Prices = Annotated[dict[str, ModelPrice], BeforeValidator(known_prices), AfterValidator(prices)]
Tenants = Annotated[dict[str, TenantLimits], BeforeValidator(known_limits), AfterValidator(tenants)]
