"""Redact the secrets of this process, and text that looks like a secret."""

import os

from pydantic import SecretStr

from loom.activities.adapters.redaction.known_secrets import secrets_of
from loom.activities.adapters.redaction.mask import SecretMask
from loom.composition.client_settings import ClientSettings


def secret_mask(settings: ClientSettings) -> SecretMask:
    """Return a redactor for this worker's own secrets and for text that looks like a secret."""
    own = {name: value for name, value in settings if isinstance(value, SecretStr | str)}
    told = {
        f"setting_{name}": secret_of(value) if isinstance(value, SecretStr) else value for name, value in own.items()
    }
    # A URL is masked as a whole if it is a secret itself: whoever knows a webhook's URL can write to its channel.
    urls = [
        text for value in own.values() if isinstance(value, SecretStr) and "://" in (text := secret_of(value) or "")
    ]
    return SecretMask((*secrets_of({**{name: value for name, value in told.items() if value}, **os.environ}), *urls))


def secret_of(value: SecretStr | None) -> str | None:
    """Return a secret setting as plain text."""
    return None if value is None else value.get_secret_value()
