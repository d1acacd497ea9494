"""Create the providers that this worker can call, and raise an error for a provider that isn't configured."""

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from loom.activities.adapters.in_process_permits import InProcessPermits
from loom.activities.adapters.models.anthropic_provider import AnthropicProvider
from loom.activities.adapters.models.demo.model import DemoModel
from loom.activities.adapters.models.media_parts import accepted_by
from loom.activities.adapters.models.model_options import problem_of
from loom.activities.adapters.models.openai_provider import OpenAIProvider
from loom.activities.adapters.models.responses_provider import ResponsesProvider
from loom.activities.adapters.models.wire import READ_TIMEOUT
from loom.activities.found_tools import WithFoundTools
from loom.activities.model_permits import Permits, PermittedProvider
from loom.activities.parts_for_models import PartLoader, ProviderWithParts
from loom.activities.ports import LLMProvider
from loom.activities.refused_requests import RefusalMemory, RefusalRetries
from loom.domain.core.errors import BadRequest, LLMConfigurationError
from loom.domain.core.model_names import DEMO, unknown_model
from loom.domain.core.requests import ModelOptions

RESPONSES_PREFIX: Final = "openai-responses"
PREFIXES: Final = ("openai", RESPONSES_PREFIX, "anthropic")

_NO_KEY: Final = "not-needed"
"""The key for a self-hosted server if no key is configured. The SDKs always require a key."""

_KINDS: Final[Mapping[str, Callable[..., "_Made"]]] = {
    "openai": OpenAIProvider,
    RESPONSES_PREFIX: ResponsesProvider,
    "anthropic": AnthropicProvider,
}

_Made: TypeAlias = OpenAIProvider | ResponsesProvider | AnthropicProvider


class ConfiguredProviders:
    """The providers that are configured in the settings. Each provider is created when it is first used and reuses its
    connections.
    """

    def __init__(
        self,
        permits: Permits | None = None,
        *,
        openai_api_key: str | None = None,
        openai_base_url: str | None = None,
        anthropic_api_key: str | None = None,
        anthropic_base_url: str | None = None,
        read_timeout: float = READ_TIMEOUT,
        parts: PartLoader | None = None,
    ) -> None:
        """Without `permits`, these providers count their calls for themselves. `parts` loads stored images and files;
        without it, providers get parts as they are.
        """
        self._parts = parts
        self._permits = permits or InProcessPermits()
        self._settings = {
            "openai": (openai_api_key, openai_base_url),
            RESPONSES_PREFIX: (openai_api_key, openai_base_url),
            "anthropic": (anthropic_api_key, anthropic_base_url),
        }
        self._read_timeout = read_timeout
        self._made: dict[str, _Made] = {}
        self._registered: dict[str, LLMProvider] = {}
        self._searching: dict[str, WithFoundTools] = {}
        self._demo = DemoModel()
        self._refusals = RefusalMemory()

    def register(self, providers: Mapping[str, LLMProvider]) -> None:
        """Add providers by their prefixes. The caller must close them. Raises BadRequest if a prefix is built in."""
        if taken := sorted({*PREFIXES, DEMO} & {*providers}):
            raise BadRequest(
                f"the app registers a provider {taken[0]!r}, which is built in: rename it", field="provider"
            )
        self._registered |= providers

    def resolve(self, model: str) -> tuple[LLMProvider, str]:
        """Return the provider for `prefix:name` and the name without the prefix. Raises BadRequest if the model name is
        invalid and LLMConfigurationError if the provider isn't configured.
        """
        prefix, _, name = model.strip().partition(":")
        if prefix == DEMO:
            return self._demo, DEMO
        prefixes = (*PREFIXES, *self._registered)
        if prefix not in prefixes or not name:
            raise unknown_model(model, prefixes)
        permitted = PermittedProvider(
            self._provider(prefix), self._permits, account=self._account(prefix), model=f"{prefix}:{name}"
        )
        if self._parts is None:
            return RefusalRetries(permitted, self._refusals), name
        own = getattr(self._registered.get(prefix), "accepted_parts", None)
        accepted = accepted_by(prefix, name) if own is None else own
        return RefusalRetries(ProviderWithParts(permitted, self._parts, accepted), self._refusals), name

    def check_options(self, model: str, options: ModelOptions) -> None:
        """Raise BadRequest if the provider doesn't have one of these options. The demo model accepts and ignores all
        settings.
        """
        prefix = model.strip().partition(":")[0]
        if prefix == DEMO or not options.given:
            return
        provider = self._registered.get(prefix) or _KINDS.get(prefix)
        if problem := problem_of(options, getattr(provider, "supported_options", ()), model):
            raise BadRequest(problem, field="model_options")

    async def aclose(self) -> None:
        """Close all connections."""
        made, self._made, self._searching = self._made, {}, {}
        for provider in made.values():
            await provider.aclose()

    def _provider(self, prefix: str) -> LLMProvider:
        if prefix not in self._searching:
            if prefix not in self._registered:
                self._made[prefix] = self._make(prefix)
            self._searching[prefix] = WithFoundTools(self._registered.get(prefix) or self._made[prefix])
        return self._searching[prefix]

    def _account(self, prefix: str) -> str:
        """Return a short name for the server and the key, which doesn't reveal them."""
        key, url = self._settings.get(prefix, (None, None))
        return blake2b(f"{url}\n{key}".encode(), digest_size=4).hexdigest()

    def _make(self, prefix: str) -> _Made:
        given_key, given_url = self._settings[prefix]
        key, url = (given_key or "").strip(), (given_url or "").strip()
        account = prefix.partition("-")[0].upper()
        key_name, url_name = f"{account}_API_KEY", f"{account}_BASE_URL"
        if not key and not url:
            raise LLMConfigurationError(
                f"no access to {prefix} models: set {key_name}, or {url_name} for a local or compatible server, where"
                f" the worker starts (`loom down`, then `loom up`), or use the model `{DEMO}`, which needs neither",
                prefix=prefix,
            )
        if not key.isascii() or not key.isprintable():
            raise LLMConfigurationError(f"{key_name} contains invalid characters: copy the key again", prefix=prefix)
        if url and not _is_web_address(url):
            raise LLMConfigurationError(f"{url_name} is not an http(s) URL: {url!r}", prefix=prefix)
        return _KINDS[prefix](api_key=key or _NO_KEY, base_url=url or None, read_timeout=self._read_timeout)


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False
