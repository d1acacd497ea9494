"""Run the Git commands that talk to a repository's server: list its branches, fetch, and push.

These commands use the configuration of the worker's user, because credential helpers, proxies and keys are in it. They
run in a bare repository that no agent can write. What a server or a configuration could make Git run or contact
otherwise is switched off: other transports, redirections, hooks, submodules and prompts. How long they take, how much
they say and how much they fetch is limited.
"""

import asyncio
import os
import re
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

from loom.activities.ports import StoreUnavailable
from loom.domain.core.errors import BadRequest, UnreachableError

NO_GIT: Final = "workspaces in Git repositories need the `git` program on the worker: install it"
LARGEST: Final = 2 * 2**30
"""The most bytes of a repository that are fetched."""
FETCH_SECONDS: Final = 1200.0
"""Seconds after which a fetch is ended."""
SECONDS: Final = 300.0
"""Seconds after which other commands are ended."""
MEMORY: Final = 4 * 2**30
"""The most bytes of memory that a process of Git may use. Git has objects as a whole in memory."""
FRUGAL: Final = ("pack.threads=1", "core.packedGitWindowSize=32m", "core.packedGitLimit=512m")
"""The settings with which Git gets by with this memory."""

_SAFE: Final = (
    *("protocol.allow=never", "http.followRedirects=false", "transfer.bundleURI=false"),
    *("http.lowSpeedLimit=1000", "http.lowSpeedTime=60"),
    *("core.hooksPath=/dev/null", "core.fsmonitor=false", "core.quotePath=false"),
    *("submodule.recurse=false", "fetch.recurseSubmodules=false", "push.recurseSubmodules=no", "push.gpgSign=false"),
    *("gc.auto=0", "maintenance.auto=false", "fetch.unpackLimit=1"),
    *FRUGAL,
)
_SERVER: Final = (
    *("protocol.allow=never", "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.alternateRefsCommand=true"),
    *("gc.auto=0", "maintenance.auto=false", "receive.autogc=false"),
)
"""The settings of the other end, if it is a repository on this machine. Its own settings could name programs."""
_SSH: Final = "ssh -oBatchMode=yes -oConnectTimeout=20 -oServerAliveInterval=15 -oServerAliveCountMax=4"
_INHERITED: Final = re.compile(
    r"(PATH|HOME|USER|LOGNAME|TMPDIR|XDG_\w+|SSH_AUTH_SOCK|KRB5\w*|SSL_CERT_\w+|NIX_SSL_CERT_FILE"
    r"|GIT_SSH|GIT_SSH_\w+|GIT_ASKPASS|GIT_SSL_\w+|GIT_HTTP_USER_AGENT|(?i:https?_proxy|no_proxy|all_proxy))"
)
"""The variables that Git, its helpers and ssh may need. Loom's own secrets aren't among them."""
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/@\s]+@|[?#][^\s'\"]*")
"""The parts of a URL that may contain a password or a token."""
_REFUSED: Final = re.compile(
    r"authentication failed|could not read (?:username|password)|permission denied|access denied|not found"
    r"|does not exist|not appear to be a git repository|no such remote|redirect|not allowed|couldn't find remote ref"
    r"|host key verification failed|dubious ownership|returned error: (?:3..|40[0-7]|41.)|not our ref|rejected"
    r"|mismatched algorithms|out of memory|died of signal 11",
    re.IGNORECASE,
)
"""What Git says when another attempt would fail in the same way."""
_MOST_TOLD: Final = 400
_MOST_SAID: Final = 2**20
"""The most bytes that Git may print."""
_LOOK: Final = 0.2
"""Seconds between two looks at how much has been fetched."""


def program() -> str:
    """Return Git's path. Raises StoreUnavailable if it isn't installed."""
    found = shutil.which("git")
    if found is None:
        raise StoreUnavailable(NO_GIT)
    return found


class RemoteGit:
    """Runs these commands in a bare repository. All of them raise BadRequest if the server refuses, and
    UnreachableError if it doesn't respond.
    """

    def __init__(self, redact: Callable[[str], str]) -> None:
        """`redact` removes secrets from what Git says."""
        self._without_secrets = redact

    def redacted(self, said: str) -> str:
        """Return what Git has said, without secrets and without what a URL contains besides the repository."""
        return self._without_secrets(_CREDENTIALS.sub("", said))

    async def refs(self, repository: Path, url: str, *names: str) -> str:
        """Return the commits of these refs, and which branch the HEAD is, in the format of `git ls-remote`."""
        words = ("ls-remote", "--symref", *_other_end(url, "upload"), "--", url, *names)
        return (await self._run(repository, url, words, SECONDS)).decode(errors="replace")

    async def fetch(self, repository: Path, url: str, refspec: str, depth: int) -> None:
        """Fetch a ref and so many commits into the repository."""
        words = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", f"--depth={depth}")
        await self._run(repository, url, (*words, *_other_end(url, "upload"), "--", url, refspec), FETCH_SECONDS)

    async def push(self, repository: Path, url: str, refspec: str) -> None:
        """Push a commit to a new branch."""
        lease = f"--force-with-lease={refspec.partition(':')[2]}:"
        words = ("push", "--quiet", "--no-verify", "--no-follow-tags", lease, *_other_end(url, "receive"), "--", url)
        await self._run(repository, url, (*words, refspec), SECONDS)

    async def _run(self, repository: Path, url: str, words: Sequence[str], seconds: float) -> bytes:
        # A connection or a cache of passwords that ssh or Git leaves running would keep a pipe open.
        with TemporaryFile() as out, TemporaryFile() as said:
            process = await asyncio.create_subprocess_exec(
                program(),
                *_options(url),
                *words,
                cwd=repository,
                env=_environment(repository),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=said,
                start_new_session=True,
            )
            limit_memory(process.pid)
            ended = asyncio.ensure_future(process.wait())
            try:
                async with asyncio.timeout(seconds):
                    while not (await asyncio.wait((ended,), timeout=_LOOK))[0]:
                        _refuse_excess(repository, url, out, said)
            except TimeoutError:
                raise UnreachableError(
                    f"{url} takes too long: git {words[0]} was ended after {seconds:.0f} s"
                ) from None
            finally:
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                await ended
            _refuse_excess(repository, url, out, said)
            answer, complaint = _content(out), _content(said)
        if process.returncode:
            raise self._failure(url, answer + complaint if words[0] == "push" else complaint)
        return answer

    def _failure(self, url: str, said: bytes) -> BadRequest | UnreachableError:
        text = self.redacted(" ".join(said.decode(errors="replace").split()))
        why = text if len(text) <= _MOST_TOLD else f"…{text[-_MOST_TOLD:]}"
        if _REFUSED.search(text):
            return BadRequest(
                f"Git can't use {url}: {why or 'no reason given'}. Check the URL, and that the worker's user may"
                " access it",
                field="workspace.git",
            )
        return UnreachableError(f"{url} does not respond: {why or 'Git was killed'}")


def limit_memory(pid: int) -> None:
    """Limit the memory of a process and of those that it starts, where the system can do that."""
    if sys.platform == "linux":
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_AS, (MEMORY, MEMORY))


def _refuse_excess(repository: Path, url: str, *outputs: IO[bytes]) -> None:
    """Raise BadRequest if the server sends too much."""
    size = 0
    for path in (repository / "objects" / "pack").glob("*"):
        with suppress(FileNotFoundError):  # Git has renamed it
            size += path.stat().st_size
    if size > LARGEST:
        raise BadRequest(
            f"{url} is too large: Loom fetches no more than {LARGEST / 2**30:g} GB of a repository",
            field="workspace.git",
        )
    if any(os.fstat(output.fileno()).st_size > _MOST_SAID for output in outputs):
        raise BadRequest(f"{url} sends too much output: Loom reads at most 1 MB", field="workspace.git")


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _other_end(url: str, way: str) -> Sequence[str]:
    """Return the option with the program at the other end, if that is on this machine."""
    if not url.startswith("file://"):
        return ()
    return (f"--{way}-pack=git {' '.join(f'-c {setting}' for setting in _SERVER)} {way}-pack",)


def _options(url: str) -> Sequence[str]:
    scheme = url.partition("://")[0]
    # The user's `url.*.insteadOf` may turn one of these into the other.
    allowed = ("file",) if scheme == "file" else ("https", "ssh")
    settings = (*_SAFE, *(f"protocol.{name}.allow=always" for name in allowed))
    return [word for setting in settings for word in ("-c", setting)]


def _environment(repository: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if _INHERITED.fullmatch(name)}
    return {
        "GIT_SSH_COMMAND": _SSH,
        "GIT_ASKPASS": "",
        "SSH_ASKPASS": "",
        **kept,
        "LC_ALL": "C",
        "GIT_DIR": str(repository),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_LFS_SKIP_SMUDGE": "1",
    }
