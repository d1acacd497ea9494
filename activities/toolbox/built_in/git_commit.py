"""`git_commit`: commit files of the workspace.

A command sees `.git` read-only, because Git and other programs later obey its settings and hooks outside any sandbox.
This tool is the one way to add commits. It runs Git in the sandbox, too, with `.git` writable except for everything
that isn't a commit, and in place of the repository's settings with settings that this module writes. Only plumbing
commands run. No hook, filter, monitor, signing program, editor or submodule's Git therefore starts, whatever the
repository says; if one did, it would still be in the sandbox.

A commit is recorded in the reflog under a digest of the call's idempotency key. If a worker dies in the call, the next
attempt finds the commit there and doesn't make a second one. Git leaves its lock files behind when it is killed, and
then refuses every further commit. Before Git takes a lock, the script therefore writes a note, which it removes at the
end. The next call that finds the note removes the locks that are not older than the note. Calls wait for each other,
so that a note is never that of a call that still runs.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from loom.activities.ports import Tool, ToolContext
from loom.activities.toolbox.built_in.shell import KEPT, OUTPUT_LIMIT, Finished, OpenedRepository, Sandbox
from loom.activities.toolbox.function_tool import Arguments, FunctionTool, tool_spec
from loom.activities.toolbox.workspace import paths as workspace
from loom.domain.core.errors import ToolExecutionError, ToolExecutionTimeout, ToolUnavailableError, ToolValidationError
from loom.domain.core.tool_calls import Effect, Scope
from loom.domain.permissions.subjects import Subject

_IDENTITY: Final = ("Loom", "loom@localhost")
"""The author of a commit if the repository's settings name none."""

_COPIED: Final[Mapping[str, re.Pattern[str]]] = {
    **dict.fromkeys(
        ("core.filemode", "core.symlinks", "core.ignorecase", "core.precomposeunicode"), re.compile("true|false")
    ),
    "core.autocrlf": re.compile("true|false|input"),
    "core.eol": re.compile("lf|crlf|native"),
    "extensions.objectformat": re.compile("sha1|sha256"),
}
"""The repository's settings that a commit needs, with the values that are copied. None of them names a program."""

_HARMLESS_EXTENSIONS: Final = frozenset({"noop", "objectformat", "preciousobjects", "worktreeconfig"})
_OVERRIDES: Final[Mapping[str, str]] = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.attributesFile": "/dev/null",
    "core.editor": "false",
    "core.pager": "cat",
    "core.quotePath": "false",
    "commit.gpgSign": "false",
    "diff.ignoreSubmodules": "all",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.allow": "never",
    "submodule.recurse": "false",
}
"""Settings with Git's highest precedence, which also reach the Git processes that Git starts. They repeat what the
replaced settings already ensure.
"""

_CACHE_FOLDERS: Final = "|".join(
    re.escape(name)
    for name in (
        *sorted(workspace.REGENERABLE),
        *(".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".pytype", ".ipynb_checkpoints"),
        *(".gradle", ".parcel-cache", ".turbo", ".sass-cache"),
    )
)
_CACHES: Final = (
    rf"(^|/)({_CACHE_FOLDERS})(/|$)|\.py[co]$|\$py\.class$|(^|/)\.coverage(\.[^/]+)?$|(^|/)\.(eslint|stylelint)cache$"
    r"|(^|/)\.DS_Store$"
)
"""What programs make again, as patterns for grep. An agent's own commands leave it in the workspace."""

_REFUSED: Final = 3
"""The exit code with which the script says why it makes no commit."""

_SCRIPT: Final = r"""
set -euo pipefail
export LC_ALL=C
mark=$1 hidden=$2 caches=$3 cache_folders=$4 subject=$5
shift 5
refuse() { printf '%s\n' "$1" >&2; exit 3; }
cd "$GIT_WORK_TREE"
exec 9< "$GIT_DIR"
flock -w 30 9 || refuse "another commit is being made in this repository: try again"
note="$GIT_DIR/loom-commit"
if [ -e "$note" ]; then
  for lock in HEAD.lock index.lock "$(git symbolic-ref -q HEAD || echo HEAD).lock"; do
    [ "$note" -nt "$GIT_DIR/$lock" ] || rm -f "$GIT_DIR/$lock"
  done
fi
trap 'rm -f "$note"' EXIT
for state in MERGE_HEAD CHERRY_PICK_HEAD REVERT_HEAD rebase-merge rebase-apply sequencer; do
  [ ! -e "$GIT_DIR/$state" ] || refuse "a merge or rebase is unfinished ($state): ask a person to finish it"
done
head=$(git rev-parse -q --verify 'HEAD^{commit}' || true)
made= left= cached=
if [ -n "$head" ] && [ -f "$GIT_DIR/logs/HEAD" ]; then
  made=$( (grep -aF "loom $mark" "$GIT_DIR/logs/HEAD" || true) | tail -n 1 | cut -d ' ' -f 2)
  if [ -n "$made" ] && ! git merge-base --is-ancestor "$made" HEAD; then made=; fi
fi
if [ -z "$made" ]; then
  export GIT_INDEX_FILE=/tmp/index
  # With a newer time, Git would miss changes that were made just after the index was written.
  if [ -f "$GIT_DIR/index" ]; then cp --preserve=timestamps "$GIT_DIR/index" "$GIT_INDEX_FILE"; fi
  if [ -n "$head" ]; then git read-tree --reset "$head"; else git read-tree --empty; fi
  for path in "$@"; do
    git ls-files -z --cached -- "$path" > /tmp/one
    git ls-files -z --others --exclude-standard -- "$path" > /tmp/new
    tagged=$( (grep -azE '/CACHEDIR\.TAG$' /tmp/new | grep -azvP '\n' || true) |
      sed -z 's/CACHEDIR\.TAG$//; s/[][\\.^$*+?(){}|]/\\&/g; s/^/|^/' | tr -d '\0')
    if printf '%s' "$path" | grep -aqE "$caches"; then cp /tmp/new /tmp/kept; else
      (grep -azE "$caches$tagged" /tmp/new || true) >> /tmp/left
      (grep -azvE "$caches$tagged" /tmp/new || true) > /tmp/kept
    fi
    [ -s /tmp/one ] || [ -s /tmp/new ] ||
      refuse "$path: no file to commit; it does not exist, or .gitignore excludes it"
    cat /tmp/one /tmp/kept >> /tmp/found
  done
  sort -zu /tmp/found > /tmp/sorted
  if [ -e /tmp/left ]; then
    cached=$(sort -zu /tmp/left | comm -z23 - /tmp/sorted | sed -zE "s#(^|/)($cache_folders)/.*#\1\2/#" | sort -zu |
      sed -n -z '6s/.*/…/; 1,6p' | tr '\0\n' '\n ' | paste -sd ' ')
  fi
  (grep -azvE "$hidden" /tmp/found || true) > /tmp/files
  left=$( (grep -azE '/$' /tmp/found || true) | tr '\0' ' ')
  git update-index --add --remove -z --stdin < /tmp/files
  if [ -n "$head" ]; then base=$head; else base=$(git hash-object -t tree /dev/null); fi
  git diff-index --cached --name-only --no-renames --ignore-submodules=all -z "$base" > /tmp/changed
  filtered=$(git check-attr -z --stdin filter < /tmp/changed | tr '\0\n' '\n ' | paste - - - |
    grep -avP '\t(unspecified|unset)$' | head -n 5 | sed 's/\tfilter\t/ has the filter /' || true)
  [ -z "$filtered" ] || refuse "Git would have to run a program to convert files, which git_commit never does; leave \
these out, or ask a person to commit them:
$filtered"
  tree=$(git write-tree)
  if [ -n "$head" ]; then old=$(git rev-parse "$head^{tree}"); else old=$(git hash-object -t tree /dev/null); fi
  [ "$tree" != "$old" ] || refuse "nothing to commit: these paths are the same as in the last commit\
${cached:+, except what programs make again, which has to be named to be committed: $cached}"
  : > "$note"
  made=$(git commit-tree "$tree" ${head:+-p "$head"} -F -)
  git update-ref -m "loom $mark: $subject" HEAD "$made" "$head"
  unset GIT_INDEX_FILE
fi
[ -e "$note" ] || : > "$note"
git reset -q -- "$@" > /tmp/reset 2>&1 || printf 'the index could not be updated: %s\n' "$(cat /tmp/reset)"
branch=$(git symbolic-ref -q --short HEAD || echo 'a detached HEAD')
printf 'committed %s on %s\n' "$(git rev-parse --short "$made")" "$branch"
git diff-tree --root --no-commit-id -r --stat=100 --no-ext-diff --no-textconv --no-renames "$made"
[ -z "$left" ] || printf 'left out, because it is a repository of its own: %s\n' "$left"
[ -z "$cached" ] || printf 'left out, because programs make it again (name it to commit it): %s\n' "$cached"
"""


def _said(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise ValueError("it is empty or contains a null byte")
    return text


class GitCommit(Arguments):
    """Arguments of git_commit."""

    message: Annotated[str, AfterValidator(_said)] = Field(max_length=20_000)
    paths: tuple[workspace.PathText, ...] = Field(
        default=(".",), min_length=1, max_length=1000, description="Also deleted ones"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """The repository of a call, and the paths to commit, relative to its top folder."""

    top: Path
    paths: tuple[str, ...]

    @property
    def git(self) -> Path:
        """The folder with the repository's data."""
        return self.top / workspace.READ_ONLY


def _place(home: Path | None, arguments: GitCommit, root: Path) -> _Place:
    """Find the repository. Raises ToolValidationError if there is none, or not one for all paths."""
    named = [workspace.unresolved(root, path, home=home) for path in arguments.paths]
    tops = dict.fromkeys(_top(root, path) for path in named)
    if len(tops) > 1:
        raise ToolValidationError("the paths are in different repositories: commit to one repository in one call")
    top = next(iter(tops))
    if top is None:
        raise ToolValidationError(
            "there is no Git repository at or above this path in the workspace: name paths in a repository, or ask a "
            "person to create one"
        )
    if not (top / workspace.READ_ONLY).is_dir() or (top / workspace.READ_ONLY).is_symlink():
        raise ToolValidationError(
            f"{workspace.shown(root, top / workspace.READ_ONLY)} is not a folder, because this is a linked worktree or "
            "a submodule: git_commit cannot write to its repository, so ask a person to commit"
        )
    return _Place(top=top, paths=tuple(path.relative_to(top).as_posix() for path in named))


def _top(root: Path, path: Path) -> Path | None:
    start = path if path.is_dir() and not path.is_symlink() else path.parent
    above = (each for each in (start, *start.parents) if each.is_relative_to(root))
    return next((each for each in above if os.path.lexists(each / workspace.READ_ONLY)), None)


def _settings(listed: str) -> tuple[str, tuple[str, str]]:
    """Return the settings that take the place of the repository's own, and the author. Raises ToolUnavailableError if
    the repository has a format that would need more settings than these.
    """
    own = dict(item.partition("\n")[::2] for item in listed.split("\0") if item)
    for key, value in own.items():
        name = key.removeprefix("extensions.")
        if key != name and name not in _HARMLESS_EXTENSIONS:
            raise _unsupported(key)
        if key in ("core.worktree", "core.bare", "core.sparsecheckout") and value.lower() not in ("false", ""):
            raise _unsupported(key)
    copied = {key: own[key].lower() for key, fits in _COPIED.items() if fits.fullmatch(own.get(key, "").lower())}
    version = "1" if "extensions.objectformat" in copied else "0"
    lines = [
        f"[core]\n\trepositoryformatversion = {version}\n\tbare = false\n\tlogAllRefUpdates = true",
        *("[{}]\n\t{} = {}".format(*key.split("."), value) for key, value in copied.items()),
    ]
    name, email = (_plain(own.get(key, "")) for key in ("user.name", "user.email"))
    return "\n".join(lines) + "\n", (name or _IDENTITY[0], email or _IDENTITY[1])


def _unsupported(key: str) -> ToolUnavailableError:
    return ToolUnavailableError(
        f"git_commit does not know what to do with this repository's setting {key}: ask a person to commit"
    )


def _plain(text: str) -> str:
    return "".join(char for char in text if char.isprintable() and char not in "<>").strip()[:200]


def _words(place: _Place, author: tuple[str, str]) -> Sequence[str]:
    """Return the environment of the script, as words before its command."""
    variables = {
        "GIT_DIR": str(place.git),
        "GIT_COMMON_DIR": str(place.git),
        "GIT_WORK_TREE": str(place.top),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_AUTHOR_NAME": author[0],
        "GIT_AUTHOR_EMAIL": author[1],
        "GIT_COMMITTER_NAME": author[0],
        "GIT_COMMITTER_EMAIL": author[1],
        "GIT_CONFIG_COUNT": str(len(_OVERRIDES)),
    }
    for number, (key, value) in enumerate(_OVERRIDES.items()):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return "env", *(f"{name}={value}" for name, value in variables.items())


def _hidden(place: _Place, root: Path, home: Path | None) -> str:
    """Return a pattern for the files that the sandbox hides, which Git would take for deleted, and for repositories in
    the repository.
    """
    own = workspace.own_state(root, home)
    names = [name for name in workspace.SECRETS if place.top == root]
    if own is not None and own.is_relative_to(place.top):
        names.append(own.relative_to(place.top).as_posix())
    return "/$" + "".join(f"|^{re.escape(name)}(/|$)" for name in names)


def _refusal(finished: Finished) -> Exception:
    output = finished.output.strip()
    if finished.timed_out:
        return ToolExecutionTimeout(
            f"Git was stopped because it took too long: commit fewer files in one call\n{output}"
        )
    if finished.exit_code == _REFUSED:
        return ToolExecutionError(f"not committed: {output}")
    if "Unable to create" in output and ".lock" in output:
        output += "\nAnother Git process works in this repository, or one was killed: try again, or ask a person"
    return ToolExecutionError(f"not committed: Git ended with exit code {finished.exit_code}\n{output}")


def git_commit_tool(sandbox: Sandbox | None, timeout: float, missing: str, home: Path | None = None) -> Tool:
    """Return the git_commit tool. Without a sandbox, the tool explains how to set one up."""

    async def run(arguments: GitCommit, context: ToolContext) -> str:
        if sandbox is None:
            raise ToolUnavailableError(missing)
        place = _place(home, arguments, context.workspace)
        started = partial(
            sandbox.run,
            workspace=context.workspace,
            timeout=timeout,
            max_output=KEPT,
            on_output=lambda _text: None,
        )
        listed = await started(
            ["bash", "-c", 'cd / && exec git config --file "$1" --no-includes -z --list', "", str(place.git / "config")]
        )
        if listed.exit_code != 0:
            raise _refusal(listed)
        settings, author = _settings(listed.output)
        message = arguments.message.strip()
        finished = await started(
            [
                *_words(place, author),
                *("bash", "-c", _SCRIPT, "git_commit", _mark(context.idempotency_key)),
                *(_hidden(place, context.workspace, home), _CACHES, _CACHE_FOLDERS),
                *(message.splitlines()[0][:200], *place.paths),
            ],
            stdin=f"{message}\n".encode(),
            repository=OpenedRepository(folder=place.git, settings=settings),
        )
        if finished.exit_code != 0 or finished.timed_out:
            raise _refusal(finished)
        return finished.output.rstrip("\n")

    return FunctionTool(
        spec=tool_spec(
            "git_commit",
            "Stage and commit files, without hooks. In `bash`, .git is read-only.",
            GitCommit,
            effect=Effect.IDEMPOTENT,  # see the module's docstring
            timeout=timeout * 2,
            scope=Scope.SYSTEM,
        ),
        arguments=GitCommit,
        function=run,
        touches=partial(_touched, home),
        missing=missing if sandbox is None else None,
        longest=timeout * 2,
        max_output=OUTPUT_LIMIT,
    )


def _mark(key: str) -> str:
    return sha256(key.encode()).hexdigest()[:24]


def _touched(home: Path | None, arguments: GitCommit, root: Path) -> tuple[Subject, ...]:
    """Return the paths. A folder stands for everything in it, which the commit reads."""
    return tuple(
        replace(each, reaches=Path(each.loose).is_dir())
        for path in arguments.paths
        for each in workspace.subjects(root, path, home=home)
    )
