"""The decision of a guard, and the line to which the guarded command belongs."""

from dataclasses import dataclass

from loom.domain.permissions.subjects import Place


@dataclass(frozen=True, kw_only=True, slots=True)
class Guard:
    """The reason why a call needs approval, although a rule allows the call."""

    what: str
    firm: bool = False
    """Whether a person must decide on every such call. No rule, grant or mode then overrides the guard."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """The command line that contains a command."""

    place: Place
    folders: tuple[str | None, ...]
    """The folders in which the command may run, starting with the workspace. None stands for an unknown folder."""
    is_fed: bool = False
    """Whether `xargs` passes arguments to a command."""
    is_git_elsewhere: bool = False
    """Whether Git may work in another repository or with other settings."""
