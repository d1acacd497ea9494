"""Repositories that runs work on: how a request names one, and which ones a worker clones.

A request names a Git repository (`GitWorkspace`), or has an archive (`ArchiveWorkspace`), whose files become the only
commit of a repository. A worker clones it into a folder of the run and pins the commit (`Checkout`). All runs of a tree
work in this clone. At its end, the root returns the change (`ReturnedChange`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, TypeAlias

from loom.domain.core.errors import BadRequest
from loom.domain.core.frozen import replace
from loom.domain.core.messages import JsonObject

SCHEMES: Final = ("https", "ssh", "file")
"""The ways to reach a repository. Git's others run programs, send passwords unencrypted, or verify nothing."""
COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
SHORT: Final = 12
"""The number of digits of a commit's id that people see."""
IN_CLONE: Final = "_in_clone"
"""The end of the names of activities that work in a clone. A worker of a release without clones has none of them, so it
leaves the work to another one. It would take the clone for a plain folder.
"""
PATCH: Final = "workspace.patch"
"""The id of the artifact with the run's change."""
RUN: Final = "{run}"
"""Stands for the run's id in the name of a branch."""
FORK: Final = "a fork can't have a repository or an archive: name a folder"
"""Why a fork's request is refused."""
ARCHIVE: Final = "archive:"
"""The beginning of the URL of a checkout of an archive. The archive's SHA-256 follows."""

_PORTS: Final = {"https": 443, "ssh": 22}
_SUFFIX: Final = ".git"
_BLANK: Final = "%20"
"""The only character of a path that may be written as a code. Servers disagree on others, such as `%2e` or `%2f`."""
_PART: Final = re.compile(r"(?! )[\w.~+@=, -]*[\w~+@=,-]")
"""Windows servers take no notice of dots and blanks at the end of a part."""
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_BAD_IN_ADDRESS: Final = re.compile(r"[\x00-\x20\x7f\\]")
# The rules of `git check-ref-format`, for a name below refs/heads/ or refs/tags/. No part is longer than a file's name.
_BAD_IN_NAME: Final = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|[^/]{250}")
_LONGEST_NAME: Final = 1000
_NOT_IN_BRANCH: Final = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST_ID: Final = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class GitWorkspace:
    """A Git repository that a run works on, in a clone of its own."""

    git: str
    """The repository's URL."""
    revision: str = ""
    """A branch, a tag, or a commit's full id. If empty, the repository's default branch."""
    push: str = ""
    """The new branch that gets the change of a run that completes. `{run}` stands for the run's id. If empty, nothing
    is pushed.
    """

    def branch(self, run_id: str) -> str:
        """Return the branch that gets the change of this run. Empty if nothing is pushed."""
        plain = _NOT_IN_BRANCH.sub("-", run_id).strip("-")
        if not 0 < len(plain) <= _LONGEST_ID:
            plain = f"{plain[:_LONGEST_ID]}-{folder_name(run_id, '')}".strip("-")
        return self.push.replace(RUN, plain)

    @property
    def summary(self) -> str:
        """What the worker does to make the clone."""
        return f"clone {self.git}"

    @property
    def named(self) -> str:
        """What the run works on, for a sentence."""
        return self.git


@dataclass(frozen=True, kw_only=True, slots=True)
class Archive:
    """An archive: its content, or the digest of a content that is stored."""

    data: str = ""
    """The content in base64."""
    digest: str = ""
    """The SHA-256 of the content, in hexadecimal digits."""
    name: str = ""
    """The name for people."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchiveWorkspace:
    """The files of an archive that a run works on, in a clone of its own."""

    archive: Archive

    @property
    def summary(self) -> str:
        """What the worker does to make the clone."""
        return f"unpack {self.named}"

    @property
    def named(self) -> str:
        """What the run works on, for a sentence."""
        return f"the archive {self.archive.name or self.archive.digest[:SHORT]}".rstrip()


Repository: TypeAlias = GitWorkspace | ArchiveWorkspace
"""What a run works on in a clone of its own."""
Workspace: TypeAlias = str | Repository
"""Where a run works: in a folder on its worker's machine, or in a clone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkout:
    """The clone that the runs of a tree work in."""

    url: str
    """The repository's URL, or `archive:` and the digest of an archive."""
    commit: str
    """The commit that the run began with."""
    revision: str
    """The branch, tag or commit that was cloned, or the archive's name."""
    folder: str
    """The clone's path, which is the same on all workers."""
    left_out: tuple[str, ...] = ()
    """The `.git` folders of an archive, which the clone doesn't have."""

    @property
    def archive(self) -> str:
        """The digest of the archive. Empty for a Git repository."""
        return self.url.removeprefix(ARCHIVE) if self.url.startswith(ARCHIVE) else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReturnedChange:
    """What has become of a run's change to its repository."""

    files: int = 0
    """The number of files that differ from the commit that the run began with."""
    patch: str = ""
    """The id of the artifact with the patch. Empty if nothing has changed, or the patch isn't stored."""
    characters: int = 0
    """The patch's length."""
    tree: str = ""
    """The id of the Git tree with the changed files."""
    withheld: str = ""
    """Why the worker doesn't push this change. Empty if it may."""
    branch: str = ""
    """The branch that has the change. Empty if it wasn't pushed."""
    commit: str = ""
    """The commit that was pushed."""
    problem: str = ""
    """Why the patch isn't stored, or the branch wasn't pushed."""

    def with_problem(self, problem: str) -> "ReturnedChange":
        """Return the change with one more problem."""
        return replace(self, problem="; ".join(filter(None, (self.problem, problem))))


def workspace_view(checkout: Checkout | None, change: ReturnedChange | None) -> JsonObject | None:
    """Return a run's repository or archive, and the change once the run has ended. None if it works in a folder."""
    if checkout is None:
        return None
    view = _source_view(checkout)
    if change is None:
        return view
    told = {"patch": change.patch, "branch": change.branch, "pushed": change.commit, "problem": change.problem}
    return {**view, "files": change.files, **{name: value or None for name, value in told.items()}}


def _source_view(checkout: Checkout) -> JsonObject:
    if not checkout.archive:
        return {"git": checkout.url, "revision": checkout.revision, "commit": checkout.commit}
    left_out = {"left_out": list(checkout.left_out)} if checkout.left_out else {}
    return {"archive": checkout.archive, "name": checkout.revision or None, "commit": checkout.commit, **left_out}


def repository_line(view: Mapping[str, Any]) -> str:
    """Describe a run's repository or archive for people, in one line. `view` comes from `workspace_view`."""
    line = f"{_source_line(view)} at {str(view['commit'])[:SHORT]}"
    line += f", without {', '.join(view['left_out'])}" if view.get("left_out") else ""
    if (files := view.get("files")) is None:
        return line
    line += f" · {files} changed file{'s' * (files != 1)}"
    line += f", patch {view['patch']}" if view.get("patch") else ""
    line += f", pushed to {view['branch']} as {str(view.get('pushed'))[:SHORT]}" if view.get("branch") else ""
    return f"{line} · {view['problem']}" if view.get("problem") else line


def _source_line(view: Mapping[str, Any]) -> str:
    if "git" in view:
        return f"repository {view['git']}, {view['revision']}"
    return f"archive {view.get('name') or str(view['archive'])[:SHORT]}"


def folder_name(run_id: str, execution: str) -> str:
    """Return the name of the folder for a tree of runs. `execution` tells runs apart that use the same id."""
    named = f"{run_id}\0{execution}".encode("utf-8", "surrogatepass")
    return blake2b(named, digest_size=16).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Repositories:
    """The repositories that a worker clones, and those that it pushes to.

    A listed URL is that of a repository, with or without `.git` at its end, or of a folder, and then lists all
    repositories below it. It is only a folder if it ends with a slash, and only a repository if it ends with `.git`.
    """

    clone: tuple[str, ...] = ()
    push: tuple[str, ...] = ()

    def refuse(self, workspace: GitWorkspace) -> None:
        """Raise BadRequest if the worker doesn't clone this repository, or doesn't push to it."""
        self.refuse_clone(workspace.git)
        if workspace.push and not _is_listed(workspace.git, self.push):
            raise BadRequest(
                f"workspace.push: this worker doesn't push to {workspace.git} ({_listed(self.push)}): leave `push`"
                " out and use the patch in the run's artifacts, or restart the worker with the repository in"
                " LOOM_PUSH_REPOSITORIES",
                field="workspace.push",
            )

    def refuse_clone(self, url: str) -> None:
        """Raise BadRequest if the worker doesn't clone the repository at this URL."""
        if not _is_listed(url, self.clone):
            raise BadRequest(
                f"this worker doesn't clone {url} ({_listed(self.clone)}): choose another repository, or restart the"
                " worker with this one in LOOM_REPOSITORIES",
                field="workspace.git",
            )


def _listed(prefixes: tuple[str, ...]) -> str:
    return f"it may use {', '.join(prefixes)}" if prefixes else "none are listed"


def _is_listed(url: str, listings: tuple[str, ...]) -> bool:
    if problem_of_address(url):
        return False
    wanted = _Address.of(url)
    return any(_Address.of(listing).covers(wanted) for listing in listings)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Address:
    """A URL without problems, in parts that servers understand in only one way."""

    server: tuple[str, str, str, int]
    """The scheme, the user, the host and the port."""
    path: tuple[str, ...]
    is_folder: bool
    """Whether the URL ends with a slash."""

    @classmethod
    def of(cls, url: str) -> "_Address":
        scheme, _, rest = url.partition("://")
        authority, _, path = rest.partition("/")
        user, _, place = authority.rpartition("@")
        host, _, port = place.partition(":")
        parts = tuple(part.replace(_BLANK, " ") for part in path.split("/") if part)
        return cls(
            server=(scheme, user, host.lower(), int(port or _PORTS.get(scheme, 0))),
            path=parts,
            is_folder=url.endswith("/") or not parts,
        )

    def covers(self, other: "_Address") -> bool:
        """Whether a setting with this address lists the other one."""
        if self.server != other.server:
            return False
        if not self.is_folder and self.repository == other.repository:
            return True
        if not self.path and other.path[0].startswith("~"):
            return False  # an ssh server takes it for a home directory, which can be anywhere
        is_one_repository = not self.is_folder and self.path[-1].endswith(_SUFFIX)
        length = len(self.path)
        return not is_one_repository and len(other.path) > length and other.path[:length] == self.path

    @property
    def repository(self) -> tuple[str, ...]:
        """The path without the suffix that Git itself leaves out or adds."""
        return (*self.path[:-1], self.path[-1].removesuffix(_SUFFIX))


def problem_of_address(url: str) -> str:
    """Return why a repository can't be cloned from this URL, as the end of a sentence, or an empty string."""
    if _BAD_IN_ADDRESS.search(url) or not url.isprintable():
        return "must not contain blanks, backslashes or control characters"
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        return "must begin with https://, ssh:// or file:// (ssh://git@host/path instead of git@host:path)"
    authority, _, path = rest.partition("/")
    if "?" in url or "#" in url:
        return "must not have a query or a fragment"
    if not path.strip("/") or not all(map(_is_plain, path.removesuffix("/").split("/"))):
        return (
            "must have a path of letters, digits, `%20` and `._~+@=,-`, without `.`, `..`, empty parts, and blanks or"
            " dots at the end of a part"
        )
    if scheme == "file":
        return "" if not authority else "must name a folder of the worker: file:///path"
    if not url.isascii():
        return "must contain only ASCII characters"
    return _problem_of_authority(scheme, authority)


def _is_plain(part: str) -> bool:
    """Whether every server understands this part of a path in the same way."""
    return _PART.fullmatch(part.replace(_BLANK, " ")) is not None


def _problem_of_authority(scheme: str, authority: str) -> str:
    user, at, host = authority.rpartition("@")
    if at and (scheme != "ssh" or ":" in user):
        return (
            "must not contain a password, nor, for https://, a user: configure a credential helper for Git, or an ssh"
            " key, on the worker"
        )
    if at and not _USER.fullmatch(user):
        return "must have a plain user name before the @"
    name, colon, port = host.partition(":")
    if not _HOST.fullmatch(name) or (colon and not _is_port(port)):
        return "must have a valid host and, if it has a port, a number from 1 to 65535"
    return ""


def _is_port(text: str) -> bool:
    return re.fullmatch(r"[1-9][0-9]{0,4}", text) is not None and int(text) < 2**16


def problem_of_branch(name: str) -> str:
    """Return why Git has no branch or tag of this name, as the end of a sentence, or an empty string."""
    parts = name.split("/")
    if (
        _BAD_IN_NAME.search(name)
        or len(name) > _LONGEST_NAME
        or name.startswith(("-", "refs/"))
        or name in ("@", "HEAD")
        or any(not part or part.startswith(".") or part.endswith((".", ".lock")) for part in parts)
    ):
        return "must be a name that Git accepts for a branch, such as `main` or `fix/readme`"
    return ""


def problem_of_revision(name: str) -> str:
    """Return why Git has no revision of this name, as the end of a sentence, or an empty string."""
    return problem_of_branch(name) and "must be a branch, a tag, or the full id of a commit"
