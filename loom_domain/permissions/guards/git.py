"""Guard the Git commands that destroy work or run programs.

A command destroys work if Git can't restore it: uncommitted changes, the content of a remote repository, or the names
of commits. Committing, amending, merging and rebasing aren't guarded, because the reflog keeps the earlier state.
"""

import re
from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Final

from loom.domain.permissions.command_words import Arguments, Words, arguments_of, git_subcommand_at
from loom.domain.permissions.guards.guard import Line
from loom.domain.permissions.subjects import Subject

_PLACE: Final = ("-C", "--git-dir", "--work-tree", "-c", "--exec-path", "--config-env")
_HARMLESS_KEY: Final = re.compile(
    r"(?:user\.(?:name|email)|color\.\w+|advice\.\w+|init\.defaultbranch|core\.(?:quotepath|abbrev)|core\.pager=cat\Z)"
    r"(?:=.*)?",
    re.IGNORECASE | re.DOTALL,
)
"""Settings that neither run a program nor choose what is overwritten."""
_VARIABLE: Final = re.compile(
    r"(?:^|\s)(?:GIT_(?!AUTHOR_|COMMITTER_|TERMINAL_PROMPT=|OPTIONAL_LOCKS=|MERGE_AUTOEDIT=|LFS_SKIP_SMUDGE=)\w+"
    r"|SSH_ASKPASS)=(?!(?:true|:|cat)(?:\s|$))"
)
"""Matches a variable that makes Git run another program or use another repository. `GIT_EDITOR=true` does neither."""
_HELPER: Final = re.compile(r"(?:[\w-]+=)?(?:ext|fd)::")
"""Matches a URL that is a command."""

_VALUES: Final[Mapping[str, str]] = {
    "archive": "-o --output --format --prefix --remote --exec --add-file",
    "branch": "-u --set-upstream-to --sort --format",
    "clean": "-e --exclude",
    "checkout": "-b -B --orphan --conflict --pathspec-from-file",
    "clone": (
        "-b --branch -o --origin -u --upload-pack -c --config --template --reference --depth -j --jobs "
        "--separate-git-dir --filter --shallow-since --bundle-uri"
    ),
    "config": "-f --file --blob --type --default --comment --value",
    "fetch": "-j --jobs --depth --deepen --shallow-since --upload-pack -o --server-option --refmap",
    "grep": "-e -f -A -B -C -m --max-depth --max-count --threads",
    "ls-remote": "--upload-pack --exec -o --server-option --sort",
    "merge": "-m -F -s -X",
    "notes": "-m -F -C -c --ref",
    "pull": "-j --jobs --depth --upload-pack -o --server-option -s -X --strategy --strategy-option --refmap",
    "push": "-o --push-option --repo --receive-pack --exec",
    "rebase": "-x --exec -s -X --strategy --onto -C",
    "remote": "-t -m",
    "reset": "--pathspec-from-file",
    "restore": "-s --source --pathspec-from-file",
    "rm": "--pathspec-from-file",
    "stash": "-m --message --pathspec-from-file",
    "switch": "-c -C --create --force-create --orphan --conflict",
    "tag": "-m -F -u --message --file --local-user --sort --format",
    "worktree": "-b -B --reason",
}
"""For each command, the options that take a value."""

_PROGRAMS: Final = ("--upload-pack", "--receive-pack", "--exec", "--ext-diff", "--textconv", "--extcmd")
"""Options that make any command run a program."""

_OPTIONS: Final[Mapping[str, str]] = {
    "am": "--abort --skip",
    "apply": "--unsafe-paths",
    "branch": "-D -f --force -M -C",
    "checkout": "-f --force -B --ours --theirs --pathspec-from-file",
    "checkout-index": "-f --force",
    "cherry-pick": "--abort --skip",
    "clone": "-c --config -u --template",
    "fetch": "-f --force -u --update-head-ok",
    "fetch-pack": "-u",
    "gc": "--prune",
    "grep": "-O --open-files-in-pager",
    "init": "--template",
    "merge": "--abort",
    "mv": "-f --force",
    "notes": "-f --force",
    "pull": "-f --force -u --update-head-ok",
    "push": "-f --force --force-with-lease --mirror --delete -d --prune",
    "read-tree": "--reset -u",
    "rebase": "--abort --skip -x",
    "reset": "--hard --merge --keep",
    "revert": "--abort --skip",
    "send-pack": "-f --force --mirror",
    "submodule": "-f --force",
    "switch": "-f --force --discard-changes -C --force-create",
    "tag": "-d --delete -f --force",
    "worktree": "-f --force -B",
}
"""For each command, the options that make it destroy work or run a program."""

_BELOW: Final[Mapping[str, str]] = {
    "bisect": "run",
    "lfs": "prune",
    "maintenance": "start register",
    "notes": "remove prune",
    "reflog": "expire delete drop",
    "remote": "remove rm set-url",
    "stash": "drop clear",
    "submodule": "foreach deinit set-url",
    "worktree": "remove",
}
"""For each command, the subcommands that destroy work or run a program."""

_ALWAYS: Final = frozenset(
    """
    filter-branch filter-repo prune update-ref fast-import
    difftool mergetool merge-index for-each-repo send-email imap-send web--browse instaweb
    credential credential-store credential-cache daemon http-backend cvsserver shell upload-pack receive-pack
    upload-archive remote-ext remote-fd submodule--helper
    """.split()  # noqa: SIM905 - a list would fill a whole screen
)
_COMPUTED: Final = frozenset({"reset", "clean", "stash", "reflog"})
"""Git commands that are dangerous if a computed word becomes a dangerous option. The value of such a word is known only
when the command runs.
"""


def sets_repository(text: str) -> bool:
    """Whether a command sets a variable that changes what Git does."""
    return _VARIABLE.search(text) is not None


def danger_of(subject: Subject, line: Line) -> str:
    """Return the dangerous part of a Git command, or an empty string."""
    at = git_subcommand_at(subject.words)
    verb = subject.words[at] if at < len(subject.words) else ""
    if verb is None:
        return "git with a computed verb"
    arguments = arguments_of(subject.words[at:], _VALUES.get(verb, ""))
    if danger := _danger(verb, subject.words[at + 1 :], arguments):
        return danger
    if verb == "checkout" and any(file.tool == "write_file" for file in subject.files):
        return "git checkout of files"
    if line.is_git_elsewhere or _is_elsewhere(subject.words[1:at]) or sets_repository(subject.text):
        return "git in another folder or with other settings"
    return ""


def _is_elsewhere(options: Words) -> bool:
    """Whether the options before the subcommand change the repository or its settings."""
    return any(
        word is not None and word.startswith(_PLACE) and not (word == "-c" and _HARMLESS_KEY.fullmatch(value or ""))
        for word, value in zip_longest(options, options[1:])
    )


def _danger(verb: str, rest: Words, arguments: Arguments) -> str:
    if verb in _COMPUTED and None in rest:
        return f"git {verb} with a computed argument"
    if verb in _ALWAYS:
        return f"git {verb}"
    if any(_HELPER.match(word or "") for word in rest):
        return f"git {verb} of a URL that is a command"
    if option := arguments.has(*_OPTIONS.get(verb, "").split(), *_PROGRAMS):
        return f"git {verb} {option}"
    operands = [word for word in arguments.operands if word is not None]
    if operands and operands[0] in _BELOW.get(verb, "").split():
        return f"git {verb} {operands[0]}"
    return _CHECKS[verb](operands, arguments, rest) if verb in _CHECKS else ""


def _of_checkout(operands: list[str], arguments: Arguments, rest: Words) -> str:
    if "--" in rest:
        return "git checkout --"
    if arguments.has("-b", "--track", "-t", "--orphan"):
        return ""
    is_path = any(word.startswith((".", ":")) or word.endswith("/") or set(word) & set("*?[") for word in operands)
    return "git checkout of files" if is_path or len(operands) > 1 else ""


def _of_clean(_: list[str], arguments: Arguments, __: Words) -> str:
    return "" if arguments.has("-n", "--dry-run") else "git clean"


def _of_config(operands: list[str], arguments: Arguments, _: Words) -> str:
    if arguments.has("--get", "--get-all", "--get-regexp", "--get-urlmatch", "--get-color", "--list", "-l"):
        return ""
    if operands[:1] in (["get"], ["list"]):
        return ""
    changes = arguments.has("--unset", "--unset-all", "--remove-section", "--rename-section", "-e", "--edit")
    operands = operands[1:] if operands[:1] == ["set"] else operands
    if not changes and (len(operands) < 2 or _HARMLESS_KEY.fullmatch("=".join(operands[:2]))):
        return "git config" if operands[:1] == ["edit"] else ""
    return "git config"


def _of_fetch(operands: list[str], _: Arguments, __: Words) -> str:
    """Check `fetch`. A `+` overwrites the name on the right. This is harmless if that name only tracks a remote one."""
    forced = (word for word in operands if word.startswith("+") and ":" in word.rstrip(":"))
    ref = next((word for word in forced if ":refs/remotes/" not in word), "")
    return f"git fetch {ref}" if ref else ""


def _of_push(operands: list[str], _: Arguments, __: Words) -> str:
    ref = next((word for word in operands[1:] if word.startswith(("+", ":"))), "")
    return f"git push {ref}" if ref else ""


def _of_replace(operands: list[str], arguments: Arguments, _: Words) -> str:
    return "git replace" if operands and not arguments.has("-l", "--list") else ""


def _of_restore(_: list[str], arguments: Arguments, __: Words) -> str:
    only_index = arguments.has("--staged", "-S") and not arguments.has("--worktree", "-W")
    return "" if only_index else "git restore"


def _of_rm(_: list[str], arguments: Arguments, __: Words) -> str:
    option = "" if arguments.has("--cached") else arguments.has("-f", "--force", "-r")
    return f"git rm {option}" if option else ""


def _of_symbolic_ref(operands: list[str], arguments: Arguments, _: Words) -> str:
    return "git symbolic-ref" if len(operands) > 1 or arguments.has("-d", "--delete") else ""


_CHECKS: Final[Mapping[str, Callable[[list[str], Arguments, Words], str]]] = {
    "checkout": _of_checkout,
    "clean": _of_clean,
    "config": _of_config,
    "fetch": _of_fetch,
    "pull": _of_fetch,
    "push": _of_push,
    "replace": _of_replace,
    "restore": _of_restore,
    "rm": _of_rm,
    "symbolic-ref": _of_symbolic_ref,
}
"""Commands whose operands or combined options decide."""
