"""In the words of a command line, find the commands that wrapper programs run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

Values = Sequence[str | None]
"""Words without their quotes. If the value of a word is known only when the command runs, the word is None."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wrapper:
    """How to skip a program's own options."""

    flags: str = ""
    """One-letter options without a value."""
    values: str = ""
    """One-letter options with a value. The value is attached to the option or is the next word."""
    long: frozenset[str] = field(default_factory=frozenset)
    """Long options without a value. Options with `=value` are always skipped."""
    operands: int = 0
    """Number of operands that precede the command."""
    assigns: bool = False
    """Whether assignments may precede the command."""


TRANSPARENT: Final[Mapping[str, Wrapper]] = {
    "timeout": Wrapper(
        flags="fpv", values="ks", long=frozenset({"--foreground", "--preserve-status", "--verbose"}), operands=1
    ),
    "time": Wrapper(flags="p"),
    "nice": Wrapper(flags="0123456789", values="n"),
    "nohup": Wrapper(),
    "stdbuf": Wrapper(values="ioe"),
    "command": Wrapper(flags="p"),
    "builtin": Wrapper(),
}
"""Programs that change how a command runs, but not its effect."""

RUNNERS: Final[Mapping[str, Wrapper]] = {
    "xargs": Wrapper(flags="0rtpxo", values="InPLdEsa", long=frozenset({"--null", "--no-run-if-empty"})),
    "env": Wrapper(flags="i0v", values="uC", long=frozenset({"--ignore-environment"}), assigns=True),
    "sudo": Wrapper(flags="EnHiSsbkAP", values="ughpCTrtDR", assigns=True),
    "doas": Wrapper(flags="ns", values="uC"),
    "setsid": Wrapper(flags="cfw", long=frozenset({"--fork", "--wait", "--ctty"})),
    "ionice": Wrapper(flags="t", values="cnp"),
    "chrt": Wrapper(flags="abfior", operands=1),
    "taskset": Wrapper(flags="a", operands=1),
    "flock": Wrapper(flags="nxseuoFv", values="wE", operands=1),
    "exec": Wrapper(flags="cl", values="a"),
    "chroot": Wrapper(operands=1),
    "coproc": Wrapper(),
    "setarch": Wrapper(flags="R", operands=1),
    "busybox": Wrapper(),
    "unshare": Wrapper(flags="fmnpruiUC"),
}
"""Programs that run another command. Approving only that command isn't sufficient."""

HIDDEN: Final = frozenset({"eval", "trap", "hash", "alias", "enable", "complete", "bind", "watch", "parallel", "su"})
"""Programs that can't be analyzed, because they run code from text or change the meaning of names."""

SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash"})

_FIND_RUNS: Final = ("-exec", "-execdir", "-ok", "-okdir")
_FIND_CHANGES: Final = ("-delete", "-fprint", "-fprint0", "-fprintf", "-fls")


class Unclear(Exception):
    """Raised if the words don't show which command would run."""


def after(wrapper: Wrapper, values: Values) -> int:
    """Return the index of the wrapped command's first word, or the number of words if no command is wrapped."""
    at = 1
    while at < len(values):
        word = values[at]
        if word is None:
            raise Unclear
        if word == "--":
            at += 1
            break
        if not word.startswith("-") or word == "-":
            break
        at += _width(wrapper, word)
    at += wrapper.operands
    while wrapper.assigns and at < len(values) and _is_assignment(values[at]):
        at += 1
    return min(at, len(values))


def _width(wrapper: Wrapper, word: str) -> int:
    """Return the number of words that an option consists of."""
    if word.startswith("--"):
        if "=" in word or word in wrapper.long:
            return 1
        raise Unclear
    for place, letter in enumerate(word[1:], start=2):
        if letter in wrapper.values:
            return 1 if place < len(word) else 2
        if letter not in wrapper.flags:
            raise Unclear
    return 1


def _is_assignment(word: str | None) -> bool:
    name, equals, _ = (word or "").partition("=")
    return equals == "=" and name.isidentifier()


def found_commands(values: Values) -> list[tuple[int, int]]:
    """Return the start and end of each command that `find` runs. Raises Unclear if `find` itself changes files."""
    if any(value in _FIND_CHANGES for value in values):
        raise Unclear
    begins = [at + 1 for at, value in enumerate(values) if value in _FIND_RUNS]
    return [(begin, _end(values, begin)) for begin in begins]


def _end(values: Values, begin: int) -> int:
    return next((at for at in range(begin, len(values)) if values[at] in (";", "+")), len(values))


def inline_script(values: Values) -> tuple[int, bool] | None:
    """Return the index of the script after `-c`, and whether the shell's options leave the script's meaning unchanged.
    Return None if the shell runs a script file.

    Raises Unclear if the shell reads commands from its standard input.
    """
    plain = True
    for at, value in enumerate(values[1:], start=1):
        if value is None:
            raise Unclear
        if value.startswith("-") and not value.startswith("--") and "c" in value:
            return at + 1, plain and set(value[1:]) <= set("ceux")
        if not value.startswith(("-", "+")):
            return None
        if value == "-s":
            break
        plain = plain and set(value[1:]) <= set("eux")
    raise Unclear
