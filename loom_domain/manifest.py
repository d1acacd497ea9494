"""What a run was prepared with, part by part, so that each worker that serves it can say what it has otherwise."""

from collections.abc import Mapping, Sequence
from typing import Final

from loom_domain.agents import AgentSpec
from loom_domain.digests import canonical, short_digest

_PARTS: Final[Mapping[str, Sequence[str]]] = {
    "prompt": ("system_prompt",),
    "model": ("model", "fallbacks", "temperature", "max_output_tokens", "context_window"),
    "permissions": ("permissions", "mode"),
    "skills": ("config",),
    "hooks": ("hooks",),
}
"""Tools are compared one by one, schema and all; Loom's own rules are pinned whatever the worker has."""


def manifest_of(spec: AgentSpec) -> Mapping[str, str]:
    """A digest of each part of an agent as a worker defines it, before a request is laid over it."""
    return {
        part: short_digest(canonical({name: repr(getattr(spec, name)) for name in names}))
        for part, names in _PARTS.items()
    }


def changed_parts(pinned: Mapping[str, str], own: Mapping[str, str] | None) -> tuple[str, ...]:
    """The parts in which a worker's agent differs from the pinned one; runs from before there were any have none."""
    if not pinned:
        return ()
    if own is None:
        return ("agent",)
    return tuple(part for part, digest in pinned.items() if own.get(part) != digest)
