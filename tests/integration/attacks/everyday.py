"""How much of everyday work is still allowed by rules that name its programs.

    python -m tests.integration.attacks.everyday [--show]

`everyday_commands.jsonl` has the commands of eleven public projects, from their Makefiles, CI files and guides for
contributors as their released source packages contain them, each with its project, release, file and licence. Left out
are placeholders, variables of `make` that the file doesn't set, and what Bash refuses. For each command, the rules are
those that a team would write who reads it: `bash(PROGRAM:*)` for each program that it names, and `write_file(**)`.
"""

import argparse
import json
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loom.domain.core.tool_calls import Verdict
from loom.domain.permissions.patterns import escaped
from tests.integration.attacks.shell_fuzz.hunt import Judge

CORPUS: Final = Path(__file__).with_name("everyday_commands.jsonl")

_INSIDE: Final = re.compile(r"\$\(([^()]+)\)|`([^`]+)`")
_KEYWORDS: Final = frozenset(
    {"if", "then", "else", "elif", "fi", "do", "done", "while", "until", "!", "{", "}", "esac", "time"}
)
_THROUGH: Final = frozenset({"sudo", "env", "time", "timeout", "nice", "nohup", "xargs", "exec", "command"})
_OPTION: Final = re.compile(r"-.*|\d+[smh]?|\w+\+?=.*", re.DOTALL)
_SHELLS: Final = frozenset({"bash", "sh"})
_ENDS: Final = frozenset(";&|()\n")
_REDIRECT: Final = re.compile(r"[<>]|&>")
_RUNS: Final = frozenset({"-exec", "-execdir"})
_UNTIL: Final = {"for": "do", "case": "in", "function": "{"}
"""Words after which no command begins until another word."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Everyday:
    """A command of the corpus."""

    project: str
    file: str
    command: str
    licence: str


def corpus() -> Sequence[Everyday]:
    """Return the commands of the corpus."""
    return [Everyday(**json.loads(line)) for line in CORPUS.read_text(encoding="utf-8").splitlines()]


def rules_of(command: str) -> Mapping[str, str]:
    """Return the rules that a team would write for a command."""
    programs = dict.fromkeys(f"bash({escaped(program)}:*)" for program in programs_of(command))
    return {**dict.fromkeys(programs, "allow"), "write_file(**)": "allow"}


def programs_of(command: str) -> Iterator[str]:
    """Yield the programs that a reader sees in a command: the first words, also after `sudo` and within `$(…)`."""
    for inside in _INSIDE.finditer(command):
        yield from programs_of(inside[1] or inside[2])
    words = shlex.shlex(_INSIDE.sub("_", command), posix=True, punctuation_chars=";&|()<>\n")
    words.whitespace, words.whitespace_split, words.commenters = " \t", True, ""
    try:
        yield from _first_words(list(words))
    except ValueError:
        yield command.split(maxsplit=1)[0]


def _first_words(words: Sequence[str]) -> Iterator[str]:
    """Yield the words at which a command begins, and those of the script after `bash -c`."""
    is_first, until = True, ""
    for at, word in enumerate(words):
        before = words[at - 1] if at else ""
        if until or word.startswith("#"):
            until = (until or "\n") if (until or "\n") not in word else ""
            is_first = not until
        elif word and set(word) <= _ENDS:
            is_first = True
        elif before == "-c" and _SHELLS & set(words[:at]):
            yield from programs_of(word)
        elif word in _UNTIL and is_first:
            until = _UNTIL[word]
        elif before in _RUNS or (is_first and not _is_in_front(word, before)):
            yield word
            is_first = word in _THROUGH


def _is_in_front(word: str, before: str) -> bool:
    """Whether a command is yet to begin after this word."""
    is_redirect = _REDIRECT.match(word) or _REDIRECT.match(before)
    return bool(is_redirect) or word in _KEYWORDS or _OPTION.fullmatch(word) is not None


def measured() -> tuple[list[Everyday], list[tuple[Everyday, str]]]:
    """Return the commands that are allowed, and the others with the reason."""
    allowed: list[Everyday] = []
    others: list[tuple[Everyday, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        judge = Judge(Path(folder).resolve())
        for each in corpus():
            verdict = judge.verdict(judge.subjects(each.command), rules_of(each.command))
            if verdict.verdict is Verdict.ALLOW:
                allowed.append(each)
            else:
                others.append((each, verdict.reason))
    return allowed, others


def main() -> None:
    """Print the share."""
    options = argparse.ArgumentParser(prog="python -m tests.integration.attacks.everyday", description=__doc__)
    options.add_argument("--show", action="store_true", help="show the commands that are not allowed")
    given = options.parse_args()
    allowed, others = measured()
    for each, reason in others if given.show else ():
        print(f"{each.command!r}\n    {sorted(rules_of(each.command))}: {reason}")
    count = len(allowed) + len(others)
    print(
        f"{len(allowed)} of {count} everyday commands are allowed by rules that name them: {len(allowed) / count:.1%}"
    )


if __name__ == "__main__":
    main()
