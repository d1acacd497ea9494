"""The `access_files` activity, which lists, reads and writes files in a run's workspace for a person.

The request names only the run. The worker asks the run itself where it works, whose it is, and what its rules are. A
person may then do what anybody who starts a run on this worker may do there, and no more than the run's rules allow the
agent's own tools:

    list     list_dir
    read     read_file, for each file of a folder
    write    write_file

What a rule, a hook or an interceptor denies is refused. Where one asks, no approval is needed, because a person makes
the request. It is still refused if approvals must be proven, or if a service sends it for a caller who may not approve
the call. Files that a guard protects are different: whoever writes them decides what programs do, so only a rule that
names such a file, or the bypass mode, lets it be written (`judge_by_hand`).

A path is resolved once. The rules judge it as it is written and where it leads, and that very file is opened.

In a clone, a write holds the clone as a tool call does, so that no call changes files at the same time, and what was
written is stored with the run's other changes.
"""

import asyncio
import json
import os
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import structlog
from temporalio import activity

from loom.activities.failures import to_application_error
from loom.activities.plan_calls import CallPreparer
from loom.activities.ports import PartStore, StoreUnavailable, ToolSet, WorkspaceLookup
from loom.activities.publish import heartbeating
from loom.activities.run_workspaces import HeldClone, RunWorkspaces
from loom.activities.start_gate import StartGate
from loom.activities.toolbox.pipeline import authorize
from loom.activities.toolbox.workspace import paths as workspace
from loom.activities.toolbox.workspace.folder_archive import files_below, packed
from loom.domain.agents.hooks import stricter_of
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import (
    AccessDeniedError,
    BadRequest,
    LoomError,
    NoSuchFileError,
    RecoverableError,
    RefusedError,
    RunNotFoundError,
    ToolExecutionError,
    UnreachableError,
)
from loom.domain.core.media import MOST_BYTES
from loom.domain.core.messages import ToolCall
from loom.domain.core.run_files import INLINE_LIMIT, CarriedContent, FileEntry, FilesAnswer, FilesRequest
from loom.domain.core.tool_calls import Verdict
from loom.domain.permissions.bounds import Bounds
from loom.domain.permissions.judge import Judgement, judge_by_hand
from loom.domain.permissions.obeyed import NO_FILES, WorkerFiles
from loom.domain.run.activity_payloads import FilesCall, RunWorkspace

_log = structlog.get_logger("loom.workspace")

MOST_LISTED: Final = 1_000
"""The maximum number of entries in an answer."""
LONGEST_LIST: Final = 1_000_000
"""The maximum length of these entries' names together, because Temporal limits an answer."""
HOOKED_AT_ONCE: Final = 20
"""How many files of a folder hooks judge at the same time."""
PATIENCE: Final = 60.0
"""For so many seconds, a write that hasn't begun waits for what it needs. Temporal attempts it only once."""
RETRY_INTERVAL: Final = 1.0
LIST_DIR: Final = "list_dir"
READ_FILE: Final = "read_file"
WRITE_FILE: Final = "write_file"

_FOLDERS: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loom-folder")
"""The thread for whole folders. It takes them one at a time, because their archives take memory and time, and the
worker's other threads have to stay free.
"""

T = TypeVar("T")


class FileAccess:
    """The files of runs, for people."""

    def __init__(
        self,
        *,
        lookup: WorkspaceLookup,
        workspaces: RunWorkspaces,
        gate: StartGate,
        bounds: Bounds,
        owner_bounds: Bounds,
        planner: CallPreparer,
        tools: ToolSet,
        obeyed: Callable[[str], WorkerFiles] | None,
        own_rules: Callable[[str], AgentSpec] | None,
        contents: PartStore | None,
        home: Path,
        redact: Callable[[str], str],
    ) -> None:
        """`obeyed` returns the files that this worker reads, for a workspace. `own_rules` returns an agent as this
        worker defines it, and is None if approvals need no proof. `home` contains Loom's own state. Without a database,
        `contents` is None.
        """
        self._lookup = lookup
        self._workspaces = workspaces
        self._gate = gate
        self._bounds = bounds
        self._owner_bounds = owner_bounds
        self._planner = planner
        self._tools = tools
        self._obeyed = obeyed
        self._own_rules = own_rules
        self._contents = contents
        self._home = home
        self._redact = redact

    @activity.defn(name="access_files")
    async def access_files(self, call: FilesCall) -> FilesAnswer:
        """List, read or write files. Raises an application failure with the type of the error that the caller gets."""
        try:
            async with heartbeating():
                answer, run = await self._answer(call)
        except UnreachableError:
            raise  # Temporal retries the activity, as if a store is unavailable
        except LoomError as error:
            raise to_application_error(_for_caller(error, call.request), self._redact) from None
        _log.info("files_accessed", **run.origin.log_ids, operation=call.request.operation)
        return answer

    async def _admitted(self, call: FilesCall) -> RunWorkspace:
        """Return where the run works. Raises a LoomError if the caller has no access to its files."""
        request = call.request
        request.refuse_unusable()
        run = await self._lookup.workspace_of(request.run_id, activity.info().task_queue)
        if run is None:
            raise RefusedError(f"run {request.run_id!r} has no files: it hasn't begun its work, or was refused")
        if run.origin.run_id != request.run_id or run.origin.tenant != request.tenant:
            raise RunNotFoundError(f"there is no run {request.run_id!r} of this tenant")
        is_signed = self._gate.is_signed_by_owner(call.start)
        if run.steering_key and not is_signed:
            raise BadRequest(
                f"run {request.run_id!r} takes only signed requests: use `loom` or LoomClient with the worker's key"
                " (LOOM_HOME or LOOM_SIGNING_KEY)",
                field="signature",
            )
        bounds = self._owner_bounds if is_signed and request.limits is None else self._bounds
        for each in (bounds, Bounds(roots=request.limits.roots if request.limits else None)):
            each.with_clone(run.checkout.folder if run.checkout else "").refuse_workspace(run.spec.workspace)
        if run.checkout is None:
            self._workspaces.refuse_folder(Path(run.spec.workspace))
        elif run.checkout.folder != run.spec.workspace:
            raise BadRequest(f"run {request.run_id!r} doesn't work in its own clone", field="run_id")
        if is_signed and call.start is not None:
            await self._gate.use(call.start, activity.info().workflow_run_id or "")
        return run

    async def _answer(self, call: FilesCall) -> tuple[FilesAnswer, RunWorkspace]:
        """Return the answer, and where the run works."""
        request = call.request
        if request.operation == "write":
            run = await _reached(lambda: self._admitted(call))
            return await self._write(request, run), run
        run = await self._admitted(call)
        return await (self._list if request.operation == "list" else self._read)(request, run), run

    async def _list(self, request: FilesRequest, run: RunWorkspace) -> FilesAnswer:
        files = self._files(run)
        note = await self._here(run)
        self._refuse_changed_results(LIST_DIR, run)
        real = await asyncio.to_thread(files.real, request.path)
        await self._refuse_unless_allowed(_calls(LIST_DIR, request.path, files.named(real)), request, run)
        entries, left_out = await asyncio.to_thread(files.entries, real)
        return FilesAnswer(entries=entries, left_out=left_out, note=note)

    async def _read(self, request: FilesRequest, run: RunWorkspace) -> FilesAnswer:
        files = self._files(run)
        note = await self._here(run)
        most = MOST_BYTES if request.by_reference and self._contents is not None else INLINE_LIMIT
        self._refuse_changed_results(READ_FILE, run)
        real = await asyncio.to_thread(files.real, request.path)
        await self._refuse_unless_allowed(_calls(READ_FILE, request.path, files.named(real)), request, run)
        if not real.is_dir():
            data = await asyncio.to_thread(files.content, real, most)
            return FilesAnswer(content=await self._carried(data, request, run), note=note)
        thread = asyncio.get_running_loop().run_in_executor
        below, unseen = await thread(_FOLDERS, files.below, real)
        judged = await self._judged([_call(READ_FILE, files.named(path)) for path in below], run, _FOLDERS)
        allowed = [
            path for path, each in zip(below, judged, strict=True) if self._refusal(READ_FILE, each, request) is None
        ]
        data, unread = await thread(_FOLDERS, files.archive, real, allowed, most)
        content = await self._carried(data, request, run)
        left_out = len(below) - len(allowed) + unseen + unread
        return FilesAnswer(content=content, is_archive=True, left_out=left_out, note=note)

    async def _write(self, request: FilesRequest, run: RunWorkspace) -> FilesAnswer:
        files, data = self._files(run), await _reached(lambda: self._given(request, run))
        await _reached(lambda: self._here(run))
        real = await asyncio.to_thread(files.to_write, request.path)
        text = data.decode("utf-8", "replace")  # what hooks and rules about the content see
        calls = _calls(WRITE_FILE, request.path, files.named(real), content=text)
        await self._refuse_unless_allowed(calls, request, run)  # before the clone is held: a refusal changes nothing
        async with self._held(run, request.short_path) as clone:
            if run.checkout is not None:
                await self._refuse_while_returning(run)
            async with clone.changing():
                # Not in a thread: it would go on, and write the file, after the request was withdrawn.
                is_new = files.write(real, data)
            note = " ".join(filter(None, (clone.note, await clone.store())))
        return FilesAnswer(path=files.named(real), is_new=is_new, note=note)

    def _files(self, run: RunWorkspace) -> "_Files":
        return _Files(root=Path(run.spec.workspace), home=self._home, run_id=run.origin.run_id)

    async def _here(self, run: RunWorkspace) -> str:
        """Make the run's clone if it isn't here. Return what the caller has to know about it, or an empty string."""
        return "" if run.checkout is None else await self._workspaces.ensure_clone(run.origin, run.checkout)

    @asynccontextmanager
    async def _held(self, run: RunWorkspace, path: str) -> AsyncIterator[HeldClone]:
        """Hold the run's clone as soon as no call does. Folders can't be held, because anybody may change them."""
        if run.checkout is None:
            yield HeldClone()
            return
        call = f"a person's change of {path}"
        async with self._workspaces.held(run.origin, run.checkout, call, takes_over=False) as clone:
            yield clone

    async def _refuse_while_returning(self, run: RunWorkspace) -> None:
        """Raise RefusedError if the tree's root is returning its change. What is pushed must be what was stored."""
        root_run_id = run.origin.root_run_id or run.origin.run_id
        root = await self._lookup.workspace_of(root_run_id, activity.info().task_queue)
        if root is not None and root.is_returning:
            raise RefusedError(
                f"run {root.origin.run_id!r} is returning its change, which couldn't contain this file: write it when"
                " the run has ended, or abort the wait"
            )

    def _refuse_changed_results(self, tool: str, run: RunWorkspace) -> None:
        """Raise AccessDeniedError if an interceptor changes what the agent reads. It may hide something, and knows
        texts for models, but no files.
        """
        if name := self._planner.changes_results(run.spec):
            raise AccessDeniedError(
                f"the interceptor {name!r} changes results of {tool}, which isn't possible for files: look at the"
                " files on the worker's machine",
                field="path",
            )

    async def _refuse_unless_allowed(self, calls: Sequence[ToolCall], request: FilesRequest, run: RunWorkspace) -> None:
        """Raise AccessDeniedError if the run's rules, hooks or interceptors don't let the caller make these calls."""
        for call, judged in zip(calls, await self._judged(calls, run), strict=True):
            if (refusal := self._refusal(call.name, judged, request)) is not None:
                raise refusal

    def _refusal(self, tool: str, judged: Judgement, request: FilesRequest) -> AccessDeniedError | None:
        """Return why the caller may not make a call that was judged like this, or None."""
        asks = f"the run's rules require an approval for {tool} here ({judged.rule})"
        match judged.verdict:
            case Verdict.DENY:
                why = f"the run's rules don't allow {tool} here ({judged.rule}): {judged.reason}"
            case Verdict.ASK if self._own_rules is not None:
                why = (
                    f"{asks}, which must be proven (LOOM_APPROVAL_KEYS). Only an agent's call can have a proof: have"
                    " the agent do this"
                )
            case Verdict.ASK if request.limits and request.limits.objection:
                why = f"{asks}. {request.limits.objection}"
            case _:
                return None
        return AccessDeniedError(why, field="path")

    async def _judged(
        self, calls: Sequence[ToolCall], run: RunWorkspace, thread: Executor | None = None
    ) -> Sequence[Judgement]:
        """Judge calls by rules, in a thread. Hooks and interceptors then judge the calls that no rule denies, several
        at a time.
        """
        judged = await asyncio.get_running_loop().run_in_executor(thread, self._judged_by_rules, calls, run)
        if not self._planner.is_hooked(run.spec):
            return judged
        open_ones = [index for index, each in enumerate(judged) if each.verdict is not Verdict.DENY]
        for start in range(0, len(open_ones), HOOKED_AT_ONCE):
            batch = open_ones[start : start + HOOKED_AT_ONCE]
            met = await asyncio.gather(*(self._judged_by_hooks(calls[index], judged[index], run) for index in batch))
            for index, each in zip(batch, met, strict=True):
                judged[index] = each
        return judged

    def _judged_by_rules(self, calls: Sequence[ToolCall], run: RunWorkspace) -> list[Judgement]:
        obeyed = self._obeyed(run.spec.workspace) if self._obeyed else NO_FILES
        own = self._own_rules(run.origin.agent) if self._own_rules else None
        found: list[Judgement] = []
        for call in calls:
            if (tool := self._tools.get(call.name)) is None:
                raise BadRequest(f"this worker has no tool {call.name}, whose rules would apply here", field="path")
            try:
                arguments = tool.parse(call.arguments)
                made = authorize(call, tool, arguments, run.spec, obeyed=obeyed, own=own, judging=judge_by_hand)
            except RecoverableError as error:  # a file in a folder whose name no tool takes
                found.append(Judgement(verdict=Verdict.DENY, rule="built-in", reason=error.message))
            else:
                found.append(made.judgement)
        return found

    async def _judged_by_hooks(self, call: ToolCall, judged: Judgement, run: RunWorkspace) -> Judgement:
        met, objection = await self._planner.met(call, run.spec, run_id=run.origin.run_id)
        if not met.stopped and met.answer is None and met.call == call:
            return stricter_of(judged, objection)
        reason = met.stopped or f"it changes or answers calls of {call.name}, which isn't possible for files"
        return Judgement(verdict=Verdict.DENY, rule=f"interceptor {met.by}", reason=reason)

    async def _carried(self, data: bytes, request: FilesRequest, run: RunWorkspace) -> CarriedContent:
        """Return the content as the answer carries it."""
        if not request.by_reference or self._contents is None:
            return CarriedContent(data=b64encode(data).decode())
        return CarriedContent(digest=await self._contents.save(_owner(), data, run.origin.tenant))

    async def _given(self, request: FilesRequest, run: RunWorkspace) -> bytes:
        """Return the content to write."""
        if (given := request.content) is None:
            raise BadRequest("there is nothing to write: give the content", field="content")
        if not given.digest:
            return _decoded(given.data)
        if self._contents is None:
            raise BadRequest("this worker stores no contents: set LOOM_DATABASE_URL on the worker", field="content")
        is_own = await self._contents.adopt(_owner(), given.digest, run.origin.tenant)
        data = await self._contents.load(given.digest) if is_own else None
        if data is None:
            raise BadRequest(f"no content is stored under the digest {given.digest}", field="content")
        return data


@dataclass(frozen=True, kw_only=True, slots=True)
class _Files:
    """The files in one workspace. No path leads out of it, into `.git`, or into Loom's own state."""

    root: Path
    home: Path
    run_id: str

    def real(self, path: str) -> Path:
        """Return the real path of a file or a folder. Raises NoSuchFileError if there is none."""
        real = self._named(path)
        if not os.path.lexists(real):
            raise NoSuchFileError(
                f"run {self.run_id!r} has no file or folder {path!r}: list the files to see what there is",
                field="path",
            )
        return real

    def named(self, path: Path) -> str:
        """Return the name of a path, as callers see it."""
        return workspace.shown(self.root, path)

    def entries(self, real: Path) -> tuple[tuple[FileEntry, ...], int]:
        """Return the entries of a folder, or the file itself, and how many more there are than fit into an answer."""
        if not real.is_dir():
            with workspace.open_file(self.root, real) as file:
                size = os.fstat(file.fileno()).st_size
            return (FileEntry(path=self.named(real), kind="file", bytes=size),), 0
        there = tuple(workspace.visible_entries(self.root, real, self.home))
        named = (
            FileEntry(path=self.named(real / each.name), kind=each.kind, bytes=each.size)
            for each in there[:MOST_LISTED]
        )
        entries = tuple(_that_fit(named))
        return entries, len(there) - len(entries)

    def below(self, folder: Path) -> tuple[Sequence[Path], int]:
        """Return the regular files below a folder, and how many folders couldn't be read."""
        return files_below(self.root, folder, self.home)

    def content(self, real: Path, most: int) -> bytes:
        """Return the content of a file. Raises BadRequest if it has more than `most` bytes."""
        with workspace.open_file(self.root, real) as file:
            size = os.fstat(file.fileno()).st_size
            data = b"" if size > most else file.read(most + 1)
        if max(size, len(data)) > most:
            raise BadRequest(f"{self.named(real)} has more than {most:,} bytes{_way_out(most)}", field="path")
        return data

    def archive(self, folder: Path, paths: Sequence[Path], most: int) -> tuple[bytes, int]:
        """Return a .tar.gz archive of these files of a folder, and how many couldn't be read."""
        return packed(self.root, folder, paths, most)

    def to_write(self, path: str) -> Path:
        """Return the real path of a file that may not exist yet. Raises BadRequest if it can't be one."""
        if path.endswith("/"):
            raise BadRequest(f"{path} names a folder: name a file in it", field="path")
        real = self._named(path)
        there = next(each for each in (real, *real.parents) if os.path.lexists(each))
        if there == real and there.is_dir():
            raise BadRequest(f"{self.named(there)} is a folder: name a file in it", field="path")
        if there != real and not there.is_dir():
            raise BadRequest(f"{self.named(there)} isn't a folder: name another path", field="path")
        return real

    def write(self, real: Path, data: bytes) -> bool:
        """Write a whole file atomically. Return whether it is new."""
        return workspace.replace_file(self.root, real, data)

    def _named(self, path: str) -> Path:
        if not self.root.is_dir():
            raise BadRequest(
                f"the run's folder {str(self.root)!r} isn't on this worker's machine, or is gone", field="run_id"
            )
        real = workspace.resolve(self.root, path, home=self.home, must_exist=False)
        if workspace.READ_ONLY in real.relative_to(self.root).parts:
            raise BadRequest(f"{path} is in .git, which isn't accessible: name another path", field="path")
        return real


def _call(tool: str, path: str, **arguments: str) -> ToolCall:
    return ToolCall(id="files", name=tool, arguments={"path": path, **arguments})


def _calls(tool: str, *paths: str, **arguments: str) -> Sequence[ToolCall]:
    """Return a call for each name of the file: as it is written, and where it leads."""
    return [_call(tool, path, **arguments) for path in dict.fromkeys(paths)]


async def _reached(work: Callable[[], Awaitable[T]]) -> T:
    """Do the work, and do it again while the server, the database or a repository doesn't respond."""
    now = asyncio.get_running_loop().time
    until = now() + PATIENCE
    while True:
        try:
            return await work()
        except (StoreUnavailable, UnreachableError):
            if now() >= until:
                raise
        await asyncio.sleep(RETRY_INTERVAL)


def _that_fit(entries: Iterable[FileEntry]) -> Iterable[FileEntry]:
    """Yield entries until their names are too long for an answer."""
    length = 0
    for entry in entries:
        length += len(json.dumps(entry.path))
        if length > LONGEST_LIST:
            return
        yield entry


def _owner() -> str:
    """Return the workflow that owns the contents of this request. They are deleted together with it."""
    return activity.info().workflow_id or ""


def _decoded(data: str) -> bytes:
    try:
        return b64decode(data, validate=True)
    except ValueError:
        raise BadRequest("content.data: not base64", field="content.data") from None


def _way_out(most: int) -> str:
    return ": set LOOM_DATABASE_URL for the worker and the client to get up to 20 MB" if most < MOST_BYTES else ""


def _for_caller(error: LoomError, request: FilesRequest) -> LoomError:
    """Return the error that a person gets. Errors of tools are for models. A long path isn't repeated."""
    message = error.message.replace(request.path, request.short_path)
    match error:
        case ToolExecutionError():
            return RefusedError(message)
        case RecoverableError():
            return BadRequest(message, field="path")
        case _:
            return type(error)(message, **error.context)
