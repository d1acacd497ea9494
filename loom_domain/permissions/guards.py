"""Require approval for allowed calls that would destroy work or write files that control other programs.

A guard turns an allow verdict into an ask. A guard is overridden by a rule that spells out the guarded call, by a
person's grant, or by the bypass mode. Removing a critical folder always needs approval.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from loom.domain.permissions.patterns import literal_start
from loom.domain.permissions.rules import COMMANDS, Kind, Rule, is_exact, kind_of
from loom.domain.permissions.subjects import Place, Subject, expanded, normal

Words = Sequence[str | None]

EDITS: Final = frozenset({"write_file", "edit_file"})
"""Tools that write files."""
GUARDED: Final = EDITS | COMMANDS
"""Guards can apply only to calls of these tools."""

_PROTECTED_FOLDERS: Final = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        ".vscode",
        ".idea",
        ".husky",
        ".devcontainer",
        ".circleci",
        ".loom",
        ".ssh",
        ".gnupg",
        ".agents",
        ".claude",
    }
)
_PROTECTED_FILES: Final = frozenset(
    """
    .bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv .zprofile .zlogin .zlogout
    .kshrc .npmrc .yarnrc .yarnrc.yml .pypirc .netrc .gitconfig .gitmodules .gitlab-ci.yml .pre-commit-config.yaml
    .pre-commit-config.yml .mcp.json .envrc loom.toml
    """.split()  # noqa: SIM905 - a list would fill a whole screen
)
_ENVIRONMENT: Final = re.compile(r"\.env(?!\.(?:example|sample|template|dist)$)(?:\..+)?")
_EMPTY_PREFIX: Final = re.compile(r"(?:^|\s)[\"']?\$\{?\w+\}?[\"']?/+[\"']?(?:\*\S*)?[\"']?(?=\s|$)")
"""Matches `"$VAR"/*`, which expands to the contents of the root folder if the variable is empty."""
_NAMED_FOLDER: Final = re.compile(r"(?:^|\s)(?:~\w+|[\"']?\$\{?(?:HOME|PWD|OLDPWD)\}?[\"']?)/*(?=\s|$)")

_GIT_PLACE: Final = ("-C", "--git-dir", "--work-tree", "-c", "--exec-path", "--config-env")
_GIT_VALUES: Final = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env"})
_REPOSITORY: Final = re.compile(r"(?:^|\s)GIT_(?:DIR|WORK_TREE|CONFIG\w*|EXEC_PATH|SSH\w*|EXTERNAL_DIFF)=")

_DANGEROUS: Final[Mapping[str, tuple[str, ...]]] = {
    "reset": ("--hard", "--merge", "--keep"),
    "clean": ("-f", "--force"),
    "checkout": ("--", ".", "./", ":/", "-f", "--force", "-B"),
    "switch": ("-f", "--force", "--discard-changes", "-C", "--force-create"),
    "push": ("-f", "--force", "--force-with-lease", "--mirror", "--delete", "-d", "--prune"),
    "branch": ("-D", "-f", "--force", "-M", "-C"),
    "tag": ("-d", "--delete", "-f", "--force"),
    "rm": ("-f", "--force"),
    "worktree": ("-f", "--force"),
    "update-ref": ("-d", "--delete", "--stdin"),
    "gc": ("--prune",),
    "read-tree": ("--reset", "-u"),
    "checkout-index": ("-f", "--force"),
    "submodule": ("-f", "--force"),
}
"""For each Git command, the options that make it destroy work."""

_ALWAYS: Final = frozenset({"restore", "filter-branch", "filter-repo", "prune"})
_BELOW: Final[Mapping[str, frozenset[str]]] = {
    "stash": frozenset({"drop", "clear"}),
    "reflog": frozenset({"expire", "delete"}),
}
_COMPUTED: Final = frozenset({"reset", "clean", "stash", "reflog"})
"""Git commands that would be dangerous if a computed word turned out to be a dangerous option. The value of such a word
is known only when the command runs.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Guard:
    """The reason why a call needs approval although a rule allows it."""

    what: str
    firm: bool = False
    """Whether a person must decide on every such call, because no rule, grant or mode overrides the guard."""


def guard_of(tool: str, subject: Subject, place: Place, *, moved: bool = False) -> Guard | None:
    """Return the guard that applies to this subject. `moved` means that the shell line changes the working directory
    before the command.
    """
    if kind_of(tool) is Kind.COMMAND:
        return _of_command(subject, place, moved=moved)
    if tool in EDITS and (name := protected(subject.text)):
        return Guard(what=f"write to {name}")
    return None


def moves(subjects: Sequence[Subject], place: Place) -> bool:
    """Whether one of these commands changes the working directory or sets the repository that Git uses."""
    return any(_moves(subject.words, place) or _REPOSITORY.search(subject.text) for subject in subjects)


def spells_out(rule: Rule, tool: str, place: Place) -> bool:
    """Whether a guard would apply to the text before the first star of an allow rule."""
    if kind_of(tool) is Kind.PATH:
        return protected(rule.pattern or "") != ""
    words = tuple(literal_start(rule.pattern or "").split())
    lines = (words, words if is_exact(rule) else (*words, "x"))
    return any(protected(word) for word in words) or any(
        guard_of(tool, Subject(text="", words=line), place) is not None for line in lines
    )


def protected(path: str) -> str:
    """Return the part of a path that controls other programs or contains secrets, or an empty string."""
    parts = [part.lower() for part in path.split("/")]
    for part, following in zip(parts, [*parts[1:], ""], strict=True):
        if part in _PROTECTED_FOLDERS or part in _PROTECTED_FILES or _ENVIRONMENT.fullmatch(part):
            return part
        if (part, following) == (".github", "workflows"):
            return ".github/workflows"
    return ""


def _of_command(subject: Subject, place: Place, *, moved: bool) -> Guard | None:
    if not subject.words:
        return None
    program = (subject.words[0] or "").rpartition("/")[2]
    if program in ("rm", "rmdir") and (path := _critical(subject, place)):
        return Guard(what=f"{program} of {path}", firm=True)
    if program == "git" and (what := _of_git(subject, moved=moved)):
        return Guard(what=what)
    written = (protected(file.text) for file in subject.files if file.tool == "write_file")
    name = next((name for name in written if name), "")
    return Guard(what=f"write to {name}") if name else None


def _critical(subject: Subject, place: Place) -> str:
    """Return the critical folder that a command removes, or an empty string."""
    if match := _EMPTY_PREFIX.search(subject.text) or _NAMED_FOLDER.search(subject.text):
        return match[0].strip()
    named = [piece for word in subject.words[1:] if word and not word.startswith("-") for piece in _spread(word)]
    paths = [(word, normal(expanded(_without_star(word), place.home), place.workspace)) for word in named]
    real = [(file.loose, file.loose) for file in subject.files if file.loose]
    return next((word for word, path in (*paths, *real) if _is_critical(path, place)), "")


def _spread(word: str) -> list[str]:
    """Return the word, and its brace alternatives that are absolute paths."""
    return [word, *(piece for piece in re.split(r"[{},]", word) if piece[:1] in ("/", "~"))] if "{" in word else [word]


def _without_star(word: str) -> str:
    """Return the path without a trailing `/*`, which refers to everything in the folder."""
    head, _, last = word.rpartition("/")
    if last.strip("*.") == "" and "*" in last:
        return head + "/" if "/" in word else "."
    return word


def _is_critical(path: str, place: Place) -> bool:
    if path.count("/") == 1:
        return True
    critical = [each for each in (place.home, place.workspace) if each]
    return path in critical or place.workspace.startswith(path + "/")


def _of_git(subject: Subject, *, moved: bool) -> str:
    at, elsewhere = _verb_at(subject.words)
    verb = subject.words[at] if at < len(subject.words) else ""
    if verb is None:
        return "git with a computed verb"
    if danger := _danger(verb, subject.words[at + 1 :]):
        return danger
    if moved or elsewhere or _REPOSITORY.search(subject.text):
        return "git in another folder or with other settings"
    return ""


def _verb_at(words: Words) -> tuple[int, bool]:
    """Return the subcommand's position, and whether options before it change the repository."""
    at, elsewhere = 1, False
    while at < len(words) and (word := words[at]) is not None and word.startswith("-"):
        elsewhere = elsewhere or word.startswith(_GIT_PLACE)
        at += 2 if word in _GIT_VALUES else 1
    return at, elsewhere


def _danger(verb: str, rest: Words) -> str:
    if verb in _COMPUTED and None in rest:
        return f"git {verb} with a computed argument"
    known = [word for word in rest if word is not None]
    if verb in _ALWAYS:
        only_index = verb == "restore" and _has(known, ("--staged", "-S")) and not _has(known, ("--worktree", "-W"))
        return "" if only_index else f"git {verb}"
    if verb in _BELOW:
        found = next((word for word in known if word in _BELOW[verb]), "")
        return f"git {verb} {found}" if found else ""
    if option := _has(known, _DANGEROUS.get(verb, ())):
        return f"git {verb} {option}"
    return _danger_of_operands(verb, known)


def _danger_of_operands(verb: str, words: Sequence[str]) -> str:
    operands = [word for word in words if not word.startswith("-")]
    if verb == "push" and (ref := next((word for word in operands[1:] if word.startswith(("+", ":"))), "")):
        return f"git push {ref}"
    if verb == "config" and len(operands) > 1 and not any(word.startswith("--get") for word in words):
        return "git config"
    if verb == "checkout" and len(operands) > 1 and not _has(words, ("-b", "--track", "-t", "--orphan")):
        return "git checkout of files"
    return ""


def _has(words: Sequence[str], options: Sequence[str]) -> str:
    """Return the first of these options that the words contain. The option can be written in full, abbreviated, or in a
    cluster of short options.
    """
    return next((option for option in options for word in words if _is(word, option)), "")


def _is(word: str, option: str) -> bool:
    if word == option:
        return True
    if option.startswith("--"):
        name = word.partition("=")[0]
        return len(option) > 2 and len(name) > 3 and option.startswith(name)
    return len(option) == 2 and option[0] == "-" and re.fullmatch(r"-[A-Za-z]*" + option[1] + r".*", word) is not None


def _moves(words: Words, place: Place) -> bool:
    if not words or words[0] not in ("cd", "pushd"):
        return False
    target = next((word for word in words[1:] if word is None or not word.startswith("-") or word == "-"), None)
    return target is None or target == "-" or normal(expanded(target, place.home), place.workspace) != place.workspace
