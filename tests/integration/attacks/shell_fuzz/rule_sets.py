"""The rule sets of the fuzzer: what each allows or denies, and which programs a line may run that it calls allowed."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import Final

from loom.activities.adapters.shell.options_that_run import RUNS
from tests.integration.attacks.shell_fuzz.arena import Ran
from tests.integration.attacks.shell_fuzz.grammar import Vocabulary

BAD: Final = ("id", "id", "id", "rm x", "evil x", "/usr/bin/id", "./evil", "git push", "touch x")
_DENIED: Final = ("rm x", "rm x", "rm -rf x", "/usr/bin/rm x", "rm")
_HARMLESS: Final = frozenset(
    {"bash", "sh", "dash", "timeout", "time", "nice", "nohup", "stdbuf", "xargs", "echo", "true", "false", "[", "test"}
)
"""Programs through which the rules look, and a few that do nothing: what the former run is recorded as well."""
_HELPERS: Final = ("gzip", "bzip2", "xz", "zstd", "compress", "lzip", "lzma", "lzop", "diff")
"""Programs that `tar` and `sdiff` run for their own options."""
_SYSTEM: Final = re.compile(r"(?:/usr)?/s?bin/[^/]+")


@dataclass(frozen=True, kw_only=True)
class RuleSet:
    """Rules, and what they name."""

    name: str
    rules: Mapping[str, str]
    vocabulary: Vocabulary
    may_run: Callable[[Ran], bool]

    def strangers(self, ran: Sequence[Ran]) -> tuple[Ran, ...]:
        """Return the programs that a line ran although the rules don't let it."""
        return tuple(dict.fromkeys(each for each in ran if not self.may_run(each)))


def only(*names: str) -> Callable[[Ran], bool]:
    """Only the system's programs of these names, with any arguments."""
    named = _HARMLESS | set(names)

    def may_run(ran: Ran) -> bool:
        return bool(_SYSTEM.fullmatch(ran[0])) and ran[0].rpartition("/")[2] in named

    return may_run


def _only_words(allowed: Mapping[str, Callable[[Sequence[str]], bool]]) -> Callable[[Ran], bool]:
    """Only these programs, and only with arguments that fit."""
    known = only(*allowed)

    def may_run(ran: Ran) -> bool:
        fits = allowed.get(ran[0].rpartition("/")[2])
        return known(ran) and (fits is None or fits(ran[1:]))

    return may_run


def _all_but(is_denied: Callable[[str, Sequence[str]], bool]) -> Callable[[Ran], bool]:
    return lambda ran: not is_denied(ran[0].rpartition("/")[2], ran[1:])


def _allowing(name: str, named: str, *ok: str) -> RuleSet:
    programs = named.split()
    return RuleSet(
        name=name,
        rules={f"bash({program}:*)": "allow" for program in programs},
        vocabulary=Vocabulary(ok, BAD),
        may_run=only(*programs),
    )


def _denying(name: str, rule: str, bad: Sequence[str], is_denied: Callable[[str, Sequence[str]], bool]) -> RuleSet:
    return RuleSet(
        name=name,
        rules={"bash": "allow", rule: "deny"},
        vocabulary=Vocabulary(("ls", "echo x", "cat x", "true"), bad),
        may_run=_all_but(is_denied),
    )


_EXACT: Final[Mapping[str, Callable[[Sequence[str]], bool]]] = {
    "ls": lambda words: not words,
    "echo": lambda words: list(words) == ["x"],
}
_GIT: Final[Mapping[str, Callable[[Sequence[str]], bool]]] = {
    "git": lambda words: list(words[:1]) in (["status"], ["diff"])
}

RULE_SETS: Final[Sequence[RuleSet]] = (
    _allowing("ls", "ls", "ls", "ls -l", "ls x"),
    RuleSet(
        name="exactly ls",
        rules={"bash(ls)": "allow", "bash(echo x)": "allow"},
        vocabulary=Vocabulary(("ls", "ls", "echo x"), BAD),
        may_run=_only_words(_EXACT),
    ),
    _allowing("ls, echo, cat", "ls echo cat", "ls", "echo x", "cat x", "cat", "echo"),
    RuleSet(
        name="git status, git diff",
        rules={"bash(git status:*)": "allow", "bash(git diff:*)": "allow"},
        vocabulary=Vocabulary(("git status", "git diff", "git diff x", "git status -s"), (*BAD, "git reset --hard")),
        may_run=_only_words(_GIT),
    ),
    _allowing(
        "echo, printf, test, [",
        "echo printf test [ : true",
        "echo x",
        "printf %s x",
        "test -f x",
        "[ -f x ]",
        "[ x = x ]",
        ":",
    ),
    RuleSet(
        name="programs with options that run",
        rules={
            f"bash({program}:*)": "allow" for program in (*RUNS, "echo", "cat", "ls", "find", "xargs", "env", "nice")
        },
        vocabulary=Vocabulary(
            (
                *("tar -cf y x", "make x", "make -C a x=y", "ssh -o BatchMode=yes x", "wget -qO- x", "npm test"),
                *(
                    "sort -u x",
                    "sed s/x/y/ x",
                    "awk '{print $1}' x",
                    "gcc -c x",
                    "vim +1 x",
                    "less +F x",
                    "pytest -q x",
                ),
                *("sqlite3 x .tables", "curl -s x", "zip -r x y", "go build x", "cargo test", "psql -l", "echo x"),
            ),
            BAD,
        ),
        may_run=only(*RUNS, "cat", "ls", "find", "env", *_HELPERS),
    ),
    _allowing("xargs, ls", "xargs ls", "ls", "ls -l", "xargs ls", "xargs -n1 ls <<< x"),
    _allowing(
        "find, grep", "find grep", "find .", "grep x y", "find . -name x", "find . -maxdepth 0 -exec grep x {} +"
    ),
    _allowing("env, timeout, nice, ls", "env timeout nice ls", "ls", "env ls", "env x=y ls", "timeout 5 ls", "nice ls"),
    _allowing(
        "builtins that set variables",
        "read declare export local readonly mapfile set shift getopts wait echo unset ls",
        "ls",
        "echo x",
        "read x",
        "declare x=1",
        "export x=1",
        "mapfile x",
        "set -e",
        "getopts a x",
        "wait",
        "unset x",
    ),
    _allowing(
        "the usual few", "cd pwd ls cat grep head wc sort echo git", "ls", "grep x y", "cat x", "echo x", "cd .", "wc"
    ),
    RuleSet(
        name="ls, echo, written files",
        rules={"bash(ls:*)": "allow", "bash(echo:*)": "allow", "write_file(**)": "allow"},
        vocabulary=Vocabulary(("ls", "echo x", "ls > x", "echo x >> y"), BAD),
        may_run=only("ls", "echo"),
    ),
    RuleSet(
        name="stars within",
        rules={"bash(git * main)": "allow", "bash(ls*)": "allow", "bash(echo * x)": "allow"},
        vocabulary=Vocabulary(("git log main", "ls", "echo a x", "lsof"), BAD),
        may_run=only("git", "ls", "lsof", "echo"),
    ),
    _denying("not rm", "bash(rm:*)", _DENIED, lambda name, _: name == "rm"),
    _denying(
        "not rm -rf",
        "bash(rm -rf:*)",
        ("rm -rf x", "rm -rf"),
        lambda name, words: name == "rm" and words[:1] == ("-rf",),
    ),
    _denying(
        "not git push",
        "bash(git push:*)",
        ("git push", "git push -f"),
        lambda name, words: name == "git" and words[:1] == ("push",),
    ),
    _denying("not evil, anywhere", "bash(*evil*)", ("evil", "evil x", "./evil"), lambda name, _: name == "evil"),
    RuleSet(
        name="ls and echo, not rm",
        rules={"bash(ls:*)": "allow", "bash(echo:*)": "allow", "bash(rm:*)": "deny"},
        vocabulary=Vocabulary(("ls", "echo x"), (*_DENIED, "id")),
        may_run=only("ls", "echo"),
    ),
)


def _words(grant: str) -> Sequence[str]:
    """Return the words of the command that an exact grant names, without their quotes and without assignments."""
    try:
        words = shlex.split(grant)
    except ValueError:
        words = grant.split(" ")
    return list(dropwhile(lambda word: re.match(r"\w+=", word), words))


def granted(grants: Sequence[str], original: Sequence[Ran]) -> RuleSet:
    """Return the rule set of an approval "for the run": it may run what the approved line ran, and the programs that
    the offered rules name.
    """
    prefixes = only(*(grant.removeprefix("bash(").removesuffix(":*)") for grant in grants if grant.endswith(":*)")))
    exact = {tuple(_words(re.sub(r"\\(.)", r"\1", grant.removeprefix("bash(").removesuffix(")")))) for grant in grants}
    seen = set(original)

    def may_run(ran: Ran) -> bool:
        return ran in seen or prefixes(ran) or not exact.isdisjoint([tuple(ran), (ran[0].rpartition("/")[2], *ran[1:])])

    return RuleSet(
        name="for the run: " + ", ".join(grants),
        rules=dict.fromkeys(grants, "allow"),
        vocabulary=Vocabulary((), ()),
        may_run=may_run,
    )
