"""Read the settings of this process and add the embedded stack's addresses.

Security-relevant settings are rejected if they come from a file that an agent could have written.
"""

import os
import re
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from dotenv import dotenv_values
from pydantic_settings.exceptions import SettingsError

from loom.composition.settings import TOML_FILE, Settings
from loom.domain.core.errors import BadRequest
from loom.stack.state import own_addresses, read


def load_settings() -> Settings:
    """Return the settings that workers, clients and commands use, including the embedded stack's addresses."""
    return _with_embedded_addresses(read_settings())


def read_settings() -> Settings:
    """Return the configured settings, without the embedded stack's addresses.

    Raises BadRequest if a value is invalid. The error names the variable and describes the problem.
    """
    try:
        _refuse_unknown_keys()
        _refuse_what_agents_could_write()
        settings = Settings()
        _refuse_an_unreadable_home(settings.home)
        _refuse_an_open_sandbox(settings)
        _refuse_an_environment_that_agents_could_change(settings)
        return settings
    except (tomllib.TOMLDecodeError, SettingsError, UnicodeDecodeError) as error:
        raise BadRequest(f"{TOML_FILE} or .env cannot be read: {error}", field=TOML_FILE) from None


def misspelled_variables() -> list[str]:
    """Return a sentence for each variable in the environment that is almost a setting, such as `LOOM_MODLE`."""
    known = {name for field in Settings.model_fields for name in Settings.names_of(field)}
    unknown = [name for name in os.environ if name.startswith("LOOM_") and name not in known]
    near = {name: get_close_matches(name, known, n=1, cutoff=0.85) for name in sorted(unknown)}
    return [f"{name} is not a setting; did you mean {found[0]}?" for name, found in near.items() if found]


def _with_embedded_addresses(settings: Settings) -> Settings:
    """Fill in each address that isn't configured from the embedded stack in `settings.home`."""
    fields = {"temporal": "temporal_address", "postgres": "database_url", "redis": "redis_url"}
    missing = {part: field for part, field in fields.items() if field not in settings.model_fields_set}
    if not missing:  # a stack's record that can't be read doesn't matter
        return settings
    found = own_addresses(settings.home)
    if "temporal" in missing and "temporal_ui" not in settings.model_fields_set and (ui := read(settings.home).ui):
        found, missing = {**found, "ui": ui}, {**missing, "ui": "temporal_ui"}
    return settings.model_copy(update={field: found[part] for part, field in missing.items() if part in found})


def _refuse_unknown_keys() -> None:
    """Reject unknown keys in `loom.toml`, so that a misspelled key isn't silently ignored."""
    path = Path(TOML_FILE)
    if not path.is_file():
        return
    unknown = sorted(set(tomllib.loads(path.read_text(encoding="utf-8"))) - set(Settings.model_fields))
    if unknown:
        raise BadRequest(f"{TOML_FILE}: unknown setting {', '.join(unknown)}", field=unknown[0])


_NOT_FROM_DOTENV: Final = re.compile(
    r"LOOM_(HOME|WORKSPACE|APP|AGENTS|CREWS|PACKAGES|MCP|FETCH_ALLOW|DYNAMIC_TOOLS|SNAPSHOTS|SANDBOX|TRUSTED_FOLDERS"
    r"|SKILLS_HOME|REDIS_SERVER|MAX_MODE|SIGNING_KEY|ENCRYPTION_KEYS|REQUIRE_SIGNED|PRIVATE|TENANTS"
    r"|APPROVAL_(KEYS?|POLICY)"
    r"|CODEC_ENDPOINT|SERVE_ORIGINS|TEMPORAL_UI|OIDC_[A-Z_]*|NOTIFY)",
    re.IGNORECASE,
)
"""Settings that load code or agents, select a program or a receiver, determine where agents may work, or relax a
protection. They aren't read from `.env`, because a command in the sandbox can create that file.
"""


def _refuse_what_agents_could_write() -> None:
    """Reject security-relevant settings in `.env`, because an agent that can write to that file could change them."""
    if Path(".env").is_file() and (named := [n for n in dotenv_values(".env") if _NOT_FROM_DOTENV.match(n)]):
        raise BadRequest(f"{named[0]} is not read from .env: export it, or write it into {TOML_FILE}", field=named[0])


def _refuse_an_unreadable_home(home: Path) -> None:
    """Reject a home that exists but can't be read, such as another user's. A missing one has no stack yet."""
    try:
        os.scandir(home).close()
    except PermissionError:
        raise BadRequest(f"LOOM_HOME: {home} can't be read: Permission denied", field="LOOM_HOME") from None
    except OSError:
        pass


def _refuse_an_open_sandbox(settings: Settings) -> None:
    """Reject settings in `loom.toml` or `.env` that turn the sandbox off. Only an environment variable can do so."""
    if settings.sandbox == "off" and os.environ.get("LOOM_SANDBOX") != "off":
        raise BadRequest(
            "only the environment itself can switch the sandbox off, not .env or loom.toml: export LOOM_SANDBOX=off",
            field="LOOM_SANDBOX",
        )


def _refuse_an_environment_that_agents_could_change(settings: Settings) -> None:
    """Reject an environment in a workspace. Permission rules name programs, and agents could replace them there."""
    prepared = settings.sandbox_environment
    for root in settings.roots:
        if prepared is not None and prepared.resolve().is_relative_to(root.resolve()):
            raise BadRequest(
                f"LOOM_SANDBOX_ENVIRONMENT: {prepared} is in {root}, where agents work and could change its programs: "
                "create it outside",
                field="LOOM_SANDBOX_ENVIRONMENT",
            )
