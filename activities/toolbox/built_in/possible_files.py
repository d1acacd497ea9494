"""Determine the files that a word of a command may be, for programs whose use of their words isn't known.

A program that `program_files` doesn't list may read or write a file that any of its words names. Only programs in
`_LEAVE_ALONE` don't. A rule that denies a path therefore makes `fmt .env` and `objcopy x locked` ask.
"""

import re
from collections.abc import Iterator
from typing import Final

from loom.activities.toolbox.built_in.program_files import IS_CODE, ONLY_READS, uses_of
from loom.domain.permissions.command_words import Words, alternatives, arguments_of, git_subcommand_at, program_of
from loom.domain.permissions.subjects import WRITING_REDIRECTS

_LEAVE_ALONE: Final = frozenset(
    """
    : [ alias basename bg break cd clear command continue declare dirname echo exit export expr false fg find getconf
    getopts groups hash help id jobs kill let local locale logname ls nproc pgrep pidof pkill popd printenv printf ps
    pushd pwd read readlink readonly realpath return seq set shift shopt sleep stat stty tput true tty type ulimit umask
    unalias uname unset uptime wait which whoami yes test < << <<<
    """.split()  # noqa: SIM905 - as a list it would take a screen
) | set(WRITING_REDIRECTS)
"""Programs that neither read nor write files that their words name, except as `program_files` describes."""

_RUNNERS: Final = frozenset(
    """
    sudo doas env xargs timeout nice nohup stdbuf time setsid ionice chrt taskset flock exec choom chroot command
    builtin strace ltrace busybox toybox setarch linux64 linux32 unshare nsenter setpriv prlimit systemd-run
    numactl faketime gtimeout gxargs gnice genv uclampset sshpass runuser su watch
    """.split()  # noqa: SIM905 - as a list it would take half a screen
)
"""Programs that run their operands, which are a command of its own. Only their own options can be files."""

_GIT_READS: Final = frozenset(
    """
    add annotate archive blame branch cat-file check-ignore commit describe diff diff-files diff-index diff-tree grep
    hash-object log ls-files ls-remote ls-tree name-rev notes push range-diff reflog rev-list rev-parse shortlog show
    show-branch show-ref status tag verify-commit whatchanged
    """.split()  # noqa: SIM905 - as a list it would take half a screen
)
"""Git commands that write no file that a word names, except with `--output`."""

_GREPS: Final = frozenset({"grep", "egrep", "fgrep"})
_GREP_VALUES: Final = "-e --regexp -f --file -A -B -C -m --max-count --include --exclude --exclude-dir -d -D --label"
_BETWEEN: Final = re.compile(r"[=:,@\s'\"`()<>|;&!%]+")
"""Characters between the parts of a word."""
_PACKED: Final = re.compile(r"\.(?:gz|Z|bz2|xz|zst|lz4|br|lzo|lz|enc|gpg|asc)\Z")
"""Endings without which a program writes what it unpacks."""
_MOST: Final = 64


def possible_files(words: Words) -> Iterator[tuple[str | None, bool]]:
    """Yield every text that may be a file's path, and whether the program may write it. None stands for a computed
    word.
    """
    name = program_of(words)
    if not words or name in _LEAVE_ALONE or words[0] in _LEAVE_ALONE:
        return
    used = set() if name in IS_CODE else {use.path for use in uses_of(words)}
    for word in dict.fromkeys(_own(words) if name in _RUNNERS else _without_pattern(name, words)):
        if word is None and None in used:
            continue
        for part in dict.fromkeys(_parts(word)) if word is not None else (None,):
            if part is None or part not in used:
                yield part, not _only_reads(name, words)


def _only_reads(name: str, words: Words) -> bool:
    at = git_subcommand_at(words) if name == "git" else len(words)
    return name in ONLY_READS or (at < len(words) and words[at] in _GIT_READS)


def _without_pattern(name: str, words: Words) -> Words:
    """Return the arguments of a command without the first operand of `grep`, which is a pattern unless `-e` or `-f`
    gives one.
    """
    arguments = arguments_of(words, _GREP_VALUES)
    if name not in _GREPS or arguments.has("-e", "-f", "--regexp", "--file") or not arguments.operands:
        return words[1:]
    at = words.index(arguments.operands[0], 1)
    return (*words[1:at], *words[at + 1 :])


def _own(words: Words) -> Iterator[str | None]:
    """Yield a runner's own options and their values."""
    before = "-"
    for word in words[1:]:
        is_own = word is not None and (word.startswith("-") or "=" in word)
        if not is_own and not (before.startswith("-") and len(before) > 1):
            return
        if word is not None:
            yield word
        before = word or ""


def _parts(word: str) -> Iterator[str]:
    """Yield the parts of a word that may be a path, such as the value of an option."""
    for each in alternatives(word)[:_MOST]:
        yield each
        for part in _BETWEEN.split(each)[:_MOST]:
            yield part.rstrip("}]\\*+") or part
            yield part
            yield _PACKED.sub("", part)
            if part.startswith("-"):
                yield from (part[2:], part[3:], part[4:])
            elif part[:1] in "rRwW<{[":
                yield part[1:]
