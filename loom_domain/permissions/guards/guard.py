"""What a guard says, and what it knows of the call besides the guarded command."""

from dataclasses import dataclass

from loom.domain.permissions.subjects import Place


@dataclass(frozen=True, kw_only=True, slots=True)
class Guard:
    """The reason why a call needs approval although a rule allows it."""

    what: str
    firm: bool = False
    """Whether a person must decide on every such call, because no rule, grant or mode overrides the guard."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """The command line that a command is part of."""

    place: Place
    folders: tuple[str | None, ...]
    """The folders that the command may run in, the workspace first. None stands for an unknown folder."""
    is_fed: bool = False
    """Whether `xargs` passes arguments to a command."""
    is_git_elsewhere: bool = False
    """Whether Git may work in another repository or with other settings."""
