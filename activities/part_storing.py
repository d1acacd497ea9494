"""Store images, recordings and files, so that history contains only references to them.

    a tool's result         kept: what can't be stored becomes a note for the model
    a request's parts       attached, in `prepare_run`: a part that can't be used refuses the run
    a message's parts       attached, in `store_parts`: a part that can't be used becomes a note for the model

A path or a URL in a request is read by the tool that the agent itself would use, under the run's permission rules, and
the user's hooks and interceptors apply. What they deny is refused. Where they ask, nobody is asked, because the person
has named the file.
"""

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog
from temporalio import activity

from loom.activities.plan_calls import CallPreparer
from loom.activities.ports import PartStore, StoreUnavailable, ToolContext, ToolSet
from loom.activities.publish import heartbeating
from loom.activities.toolbox.output_sanitizer import OutputSanitizer
from loom.activities.toolbox.pipeline import authorize, execute
from loom.domain.agents.hooks import Objection, stricter_of
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import BadRequest, ToolValidationError
from loom.domain.core.media import (
    IMAGES,
    MOST_BYTES,
    PDF,
    UNKNOWN,
    base64_content,
    media_tokens,
    part_type,
    picture_problem,
    recognized,
    sniffed,
)
from loom.domain.core.messages import Part, ToolCall
from loom.domain.core.tasks import Origin
from loom.domain.core.tool_calls import ToolResult, Verdict
from loom.domain.run.activity_payloads import StoredParts, StorePartsRequest

_log = structlog.get_logger("loom.parts")

INLINE_LIMIT: Final = 1_000_000
"""Maximum total size in bytes of the parts of one message or result that history contains, if there is no store."""
READ_SECONDS: Final = 40.0
"""Timeout in seconds for reading one path or URL."""
NO_STORE: Final = "without a database, Loom keeps at most 1,000,000 bytes of a message: set LOOM_DATABASE_URL"

READ_FILE: Final = "read_file"
HTTP_FETCH: Final = "http_fetch"


class PartKeeper:
    """Stores the parts of tool results, requests and messages."""

    def __init__(
        self, store: PartStore | None, tools: ToolSet, sanitizer: OutputSanitizer, planner: CallPreparer
    ) -> None:
        self._store = store
        self._tools = tools
        self._sanitizer = sanitizer
        self._planner = planner

    async def kept(self, result: ToolResult, origin: Origin) -> ToolResult:
        """Return the result with its parts stored. What can't be stored or decoded becomes a note in its text."""
        kept: list[Part] = []
        notes: list[str] = []
        room = INLINE_LIMIT
        for part in result.parts:
            if not part.data:
                if part.type != "text" and not (part.digest or part.url):
                    notes.append(f"({part.told} was left out: it is empty)")
                elif part.digest and not await self._is_own(part.digest, origin):
                    notes.append(f"({part.told} was left out: no content is stored under its digest)")
                else:
                    kept.append(part)
                continue
            if (data := base64_content(part.data)) is None:
                notes.append(f"({part.told} was left out: its `data` is not base64)")
                continue
            part = _checked(part, data)  # noqa: PLW2901
            if why := picture_problem(part.media_type, data):
                notes.append(f"({part.told} was left out: it {why})")
                continue
            stored = await self._stored_if_possible(part, data, origin)
            if stored.data and len(data) > room:
                notes.append(f"({part.told} was left out: {NO_STORE})")
                continue
            room -= len(data) if stored.data else 0
            kept.append(stored)
        text = "\n".join((result.content, *notes)) if notes else result.content
        return replace(result, content=text, parts=tuple(kept))

    async def adopted(self, parts: Sequence[Part], origin: Origin) -> None:
        """Make the run an owner of these parts, which another run of its tenant has stored."""
        for digest in sorted({part.digest for part in parts if part.digest}):
            if self._store is not None and not await self._store.adopt(origin.run_id, digest, origin.tenant):
                _log.warning("part_missing", run_id=origin.run_id, digest=digest)

    async def attached(self, parts: Sequence[Part], spec: AgentSpec | None, origin: Origin) -> tuple[Part, ...]:
        """Return the parts of a request, read and stored.

        Raises BadRequest if one of them can't be used, and StoreUnavailable.
        """
        read = await asyncio.gather(*(self._attached(part, n, spec, origin) for n, part in enumerate(parts)))
        attached = tuple(part for each in read for part in each)
        self._refuse_too_much(attached)
        return attached

    @activity.defn(name="store_parts")
    async def store_parts(self, request: StorePartsRequest) -> StoredParts:
        """Read and store the parts of messages. A part that can't be used becomes a note for the model."""
        async with heartbeating():
            room = MOST_BYTES if self._store is not None else INLINE_LIMIT
            usable: list[Part] = []
            for number, part in enumerate(request.parts):
                read = await self._usable(part, number, request, room)
                room -= sum(each.bytes for each in read)
                usable.extend(read)
            return StoredParts(parts=tuple(usable))

    async def _usable(self, part: Part, number: int, request: StorePartsRequest, room: int) -> tuple[Part, ...]:
        try:
            read = await self._attached(part, number, request.spec, request.origin)
            why = "the attachments are too large together" if sum(each.bytes for each in read) > room else ""
        except BadRequest as error:
            read, why = (), self._sanitizer.clean(error.message)
        name = part.name or part.path or part.url or "a file"
        return (Part(type="text", text=f"({name} was attached, but can't be shown: {why})"),) if why else read

    async def _attached(self, part: Part, number: int, spec: AgentSpec | None, origin: Origin) -> tuple[Part, ...]:
        try:
            if part.path or part.url:
                return await self._read(part, number, spec, origin)
            data = await self._content(part, origin)
            what = recognized(data, part.name)
        except (BadRequest, ToolValidationError) as error:
            raise BadRequest(f"parts.{number}: {error.message}", field=f"parts.{number}") from None
        whole = replace(part, type=what.type, media_type=what.media_type, data=b64encode(data).decode())
        return (await self._stored(replace(whole, counted=what.tokens), data, origin),)

    async def _content(self, part: Part, origin: Origin) -> bytes:
        if not part.digest:
            if (data := base64_content(part.data)) is None:
                raise BadRequest("`data` is not base64: encode the content of the file")
            return data
        if self._store is None:
            raise BadRequest("this worker stores no parts: set LOOM_DATABASE_URL on the worker")
        is_own = await self._store.adopt(origin.run_id, part.digest, origin.tenant)
        stored = await self._store.load(part.digest) if is_own else None
        if stored is None:
            raise BadRequest(f"no content is stored under the digest {part.digest}: send the content itself as `data`")
        return stored

    async def _read(self, part: Part, number: int, spec: AgentSpec | None, origin: Origin) -> tuple[Part, ...]:
        """Return what the agent's own tool returns for this path or URL."""
        name, arguments = (READ_FILE, {"path": part.path}) if part.path else (HTTP_FETCH, {"url": part.url})
        if spec is None or (tool := self._tools.get(name)) is None:
            raise BadRequest(f"this worker has no tool {name}: send the content itself as `data`")
        call = ToolCall(id=f"attachment-{number}", name=name, arguments=arguments)
        met, objection = await self._planner.met(call, spec, run_id=origin.run_id)
        if met.stopped:
            raise BadRequest(met.stopped)
        call = met.call
        self._refuse_denied(call, tool.parse(call.arguments), spec, objection)
        if met.answer is not None:
            return (Part(type="text", text=f"{part.path or part.url}:\n{met.answer}"),)
        context = ToolContext(
            workspace=Path(spec.workspace),
            run_id=origin.run_id,
            call_id=call.id,
            idempotency_key=call.id,
            timeout=READ_SECONDS,
            execution=origin.execution,
        )
        result = await execute(
            call,
            box={name: tool},
            context=context,
            sanitizer=self._sanitizer,
            is_cancelled=lambda: False,
            after=lambda result: self._planner.answered(call, result, spec, run_id=origin.run_id),
        )
        if result.status == "error":
            raise BadRequest(result.content)
        result = await self.kept(result, origin)
        named = tuple(replace(each, name=part.name or each.name or part.path or part.url) for each in result.parts)
        said = Part(type="text", text=f"{part.path or part.url}:\n{result.content}")
        return named if named and part.path else (said, *named)

    def _refuse_denied(self, call: ToolCall, arguments: object, spec: AgentSpec, objection: Objection | None) -> None:
        judged = stricter_of(authorize(call, self._tools[call.name], arguments, spec).judgement, objection)
        if judged.verdict is Verdict.DENY:
            raise BadRequest(f"the run's rules don't allow {call.name} here ({judged.rule}): {judged.reason}")

    async def _is_own(self, digest: str, origin: Origin) -> bool:
        """Whether the run may read the content that a tool refers to."""
        if self._store is None:
            return False
        try:
            return await self._store.adopt(origin.run_id, digest, origin.tenant)
        except StoreUnavailable as error:
            _log.warning("part_not_adopted", digest=digest, error=str(error))
            return False

    async def _stored_if_possible(self, part: Part, data: bytes, origin: Origin) -> Part:
        part = replace(part, counted=media_tokens(part.media_type, data))
        try:
            return await self._stored(part, data, origin)
        except StoreUnavailable as error:
            _log.warning("part_not_stored", bytes=len(data), error=str(error))
            return part

    async def _stored(self, part: Part, data: bytes, origin: Origin) -> Part:
        """Return the part by reference or, without a store, as it is."""
        if self._store is None:
            return part
        digest = await self._store.save(origin.run_id, data, origin.tenant)
        return replace(part, data="", digest=digest, size=len(data))

    def _refuse_too_much(self, parts: Sequence[Part]) -> None:
        total = sum(part.bytes for part in parts)
        if self._store is None and total > INLINE_LIMIT:
            raise BadRequest(f"parts: {total:,} bytes are too much: {NO_STORE}", field="parts")
        if total > MOST_BYTES:
            raise BadRequest(
                f"parts: {total:,} bytes are too much: a message may have {MOST_BYTES:,} bytes of parts", field="parts"
            )


def _checked(part: Part, data: bytes) -> Part:
    """Return the part with the media type of its content, and without line breaks in its base64. A provider would
    reject a conversation with anything else.
    """
    part = replace(part, data=b64encode(data).decode(), digest="")
    if found := sniffed(data):
        return replace(part, type=part_type(found), media_type=found)
    if part.media_type in IMAGES or part.media_type == PDF:
        return replace(part, type="file", media_type=UNKNOWN)
    return part
