"""Names of models: `PREFIX:NAME`, where the prefix is that of a provider, or `demo`."""

from collections.abc import Collection
from typing import Final

from loom.domain.core.errors import BadRequest
from loom.domain.core.suggestions import nearest

DEMO: Final = "demo"
"""The rule-based stand-in, which needs no key and has no prefix."""


def is_model(model: str, prefixes: Collection[str]) -> bool:
    """Whether a model with one of these prefixes, or the demo model, has this name."""
    prefix, _, name = model.strip().partition(":")
    return prefix == DEMO or (prefix in prefixes and bool(name))


def unknown_model(model: str, prefixes: Collection[str]) -> BadRequest:
    """Return the error for an unknown model name, with a similar name if there is one."""
    prefix, _, name = model.strip().partition(":")
    similar = nearest(prefix, prefixes if name else (*prefixes, DEMO), "").removesuffix("'?")
    if similar:
        ending = "'?" if similar.endswith(f"'{DEMO}") else f":{name or '<name>'}'?"
        return BadRequest(f"no such model: {model!r}; {similar}{ending}", field="model")
    # A name without a prefix is probably right, apart from its prefix.
    rest = name or prefix or "<name>"
    known = ", ".join(f"{each}:{rest}" for each in prefixes)
    return BadRequest(f"no such model: {model!r}; write one of {known}, or {DEMO}", field="model")
