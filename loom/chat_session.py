"""Chat with an agent from Python, over days, processes and machines.

    from loom import ChatSession, LoomClient

    async with LoomClient.connected() as loom:
        chat = ChatSession(loom, "anna")
        answer = await chat.ask("What did we decide yesterday?")

A session's messages are answered by one run, which keeps the conversation and waits between the messages. Each message
has an id. A message that is sent again with the same id is not answered again.

A chat belongs to the tenant and the user that its request names. Sessions with the same name are different chats if
their tenants or users differ.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Unpack
from uuid import uuid4

from temporalio.client import WithStartWorkflowOperation
from temporalio.common import Priority, WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from loom.activities.adapters.temporal.run_history import TemporalPasts
from loom.activities.adapters.temporal.runs import TemporalRuns
from loom.activities.ports import StreamUnavailable
from loom.archive_upload import encoded_workspace
from loom.chat_ids import chat_run_id, escaped
from loom.client import LoomClient
from loom.domain.core.errors import (
    BadRequest,
    MessageNotFoundError,
    RefusedError,
    RunExistsError,
    RunNotFoundError,
    UnreachableError,
)
from loom.domain.core.messages import JsonObject, Message, Usage
from loom.domain.core.requests import AGENT_RUN, STARTED_BY, RunError, RunRequest, RunResult, RunStatus
from loom.domain.core.tasks import Action
from loom.domain.core.tenants import Owner
from loom.domain.run.chat import ChatAnswer, Handling, MessageState, WhenBusy
from loom.domain.run.state import RunState
from loom.inline_content import refuse_large_content
from loom.outside_status import request_of, resting_state
from loom.part_upload import encoded
from loom.request_fields import PartFields, RunFields
from loom.visibility import SUMMARY_LENGTH, TASK, tenant_in
from loom.watching import closing
from loom.workflows.options import TASK_TIMEOUT
from loom.workflows.validation import read_request, read_steering

FIRST_LOOK: Final = 0.05
LONGEST_PAUSE: Final = 0.5
"""Seconds between two looks for an answer: the first pause, and the longest. A look adds nothing to the history."""
TRIES: Final = 20
"""How often a message is sent to a chat that is just ending. A new chat then begins with it."""
PAUSE_BETWEEN_TRIES: Final = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class SentMessage:
    """A message that the server has accepted."""

    message_id: str
    """The id of the message, which answers name in `message_ids`."""
    run_id: str
    """The run that answers the message."""
    handling: Handling | None
    """What the chat does with the message. None if no worker has told so yet; the server keeps the message."""


class ChatSession:
    """A conversation with one agent. Any number of processes may take part in it."""

    def __init__(self, loom: LoomClient, session: str, **request: Unpack[RunFields]) -> None:
        """Create a session. `tenant` and `user_id` name whose session it is. The other fields of the request apply if a
        message begins a new chat.

        Raises BadRequest if the request is invalid.
        """
        if not session.strip():
            raise BadRequest("the session is empty; leave it out for a new one", field="session_id")
        self._loom = loom
        self._runs = TemporalRuns(loom.temporal)
        self._request = {**request, "session_id": session, "chat": True}
        self._given: Any = encoded_workspace(request.get("workspace"))
        self._workspace: Any = None
        """As in the requests that are sent: an archive is stored before the first one."""
        self._is_begun = False
        self.session = session
        self._owner = _owner_of(read_request({**self._request, "workspace": self._given, "task": "hello"}))
        self.run_id = chat_run_id(session, self._owner)

    async def ask(
        self,
        text: str,
        *,
        parts: Sequence[PartFields] | None = None,
        when_busy: WhenBusy = "queue",
        by: str = "",
    ) -> ChatAnswer:
        """Send a message and wait for the answer."""
        return await self.answer(await self.send(text, parts=parts, when_busy=when_busy, by=by))

    async def send(
        self,
        text: str,
        *,
        parts: Sequence[PartFields] | None = None,
        when_busy: WhenBusy = "queue",
        message_id: str | None = None,
        by: str = "",
    ) -> SentMessage:
        """Send a message. It begins the chat, if there is none yet.

        If the agent is at work, the message waits (`queue`), stops the work and is answered next (`interrupt`), or is
        answered by another run, which continues the conversation from its last answer (`own_run`). The answer to an
        agent's question needs no `when_busy`. To send a message again after an error, pass the same `message_id`.

        `parts` are images, PDFs, recordings and texts that belong to the message. A run of its own can't have any.

        Raises UnreachableError if the server doesn't respond, or, for `own_run`, no worker.
        """
        if not text.strip():
            raise BadRequest("the message is empty: pass a text for the agent", field="text")
        chosen = message_id or uuid4().hex[:16]
        given = encoded(parts or ())
        said = {name: value for name, value in {"text": text, "by": by, "parts": given}.items() if value}
        payload = {**said, "message_id": chosen, "when_busy": when_busy}
        read_steering("send_message", payload, datetime.now().astimezone())
        if given and when_busy == "own_run":
            raise BadRequest("own_run doesn't support a message with parts; choose queue or interrupt", field="parts")
        if given:
            payload["parts"] = await self._loom.upload(given, self.run_id)
        await self._refuse_unfit(payload)
        self._workspace = await self._stored_workspace()
        refuse_large_content(self._first(payload)[0])
        receipt = await self._receipt(payload)
        if receipt is None and when_busy == "own_run":
            raise UnreachableError("no worker reports whether the agent is at work; start one with `loom up`")
        if receipt is None:
            await self._without_worker(payload)
            return SentMessage(message_id=chosen, run_id=self.run_id, handling=None)
        handling: Handling | None = receipt.get("handling")
        if handling is None:
            raise BadRequest(f"run {self.run_id!r} is not a chat; choose another session", field="session_id")
        run_id = self.run_id
        if handling == "own_run":
            run_id = await self._own_run(text, chosen, int(receipt.get("answered_turn") or 0), by)
        return SentMessage(message_id=chosen, run_id=run_id, handling=handling)

    async def answer(self, sent: SentMessage) -> ChatAnswer:
        """Wait for the answer to a message. An interruption or a failure is an answer, too.

        Raises RefusedError if the chat no longer remembers the answer.
        """
        if sent.run_id != self.run_id:
            return _answer_of(await self._loom.result(sent.run_id), sent.message_id)
        pause = FIRST_LOOK
        while True:
            with suppress(UnreachableError):
                state = await self.look(sent.message_id)
                if state.answer is not None:
                    return state.answer
                if state.handling == "answered":
                    return await self._forgotten(sent.message_id)
                if await self._loom.has_ended(self.run_id):
                    return _answer_of(await self._loom.result(self.run_id), sent.message_id)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def look(self, message_id: str) -> MessageState:
        """Return what has become of a message.

        Raises RunNotFoundError if the chat doesn't exist, and UnreachableError if no worker responds. A chat that has
        waited for more than a minute needs no worker.
        """
        try:
            state: MessageState = await self._runs.query(self.run_id, "answer", MessageState, message_id)
        except UnreachableError:
            chat = (await self._at_rest()).chat
            return MessageState() if chat is None else chat.state_of(message_id)
        return state

    async def refuse_unknown(self, message_id: str) -> None:
        """Raise MessageNotFoundError if a worker says that the chat doesn't know the message. Without a worker, the
        message may be waiting at the server.
        """
        with suppress(UnreachableError):
            state: MessageState = await self._runs.query(self.run_id, "answer", MessageState, message_id)
            if state.handling is None and state.answer is None:
                raise MessageNotFoundError(f"chat {self.session!r} doesn't know message {message_id!r}, or no longer")

    async def messages(self) -> tuple[Message, ...]:
        """Return the messages in the chat's current window, oldest first. A new session has none.

        Raises UnreachableError if the agent is at work, but no worker responds.
        """
        try:
            return await self._loom.transcript(self.run_id)
        except RunNotFoundError:
            return ()
        except UnreachableError:
            return (await self._at_rest()).transcript.messages

    async def status(self) -> JsonObject:
        """Return the status of the chat's run. Raises RunNotFoundError if the chat doesn't exist."""
        return await self._loom.status(self.run_id)

    async def _at_rest(self) -> RunState:
        """Return the state of a chat that rests. Raises UnreachableError if it is at work, but no worker responds."""
        description = await self._runs.described(self.run_id)
        state = resting_state(description, await TemporalPasts(self._loom.temporal).beginning(self.run_id))
        if state is None:
            raise UnreachableError("no worker responds; start one with `loom worker` or `loom up`")
        return state

    async def _refuse_unfit(self, payload: JsonObject) -> None:
        """Raise BadRequest if the message would begin the chat, and no running worker serves its request. Also raise it
        if somebody else's run has the chat's id.
        """
        if self._is_begun:
            return
        try:
            description = await self._runs.described(self.run_id)
            request = request_of(description, await TemporalPasts(self._loom.temporal).beginning(self.run_id))
        except RunNotFoundError:
            _, asked = self._first(payload)
            await self._loom.refuse_unserved(asked)
        else:
            is_readable = bool(request.task)
            if tenant_in(description) != self._owner.tenant or (is_readable and _owner_of(request) != self._owner):
                raise BadRequest(
                    f"run {self.run_id!r} is not a chat of this tenant and user; choose another session",
                    field="session_id",
                )
        self._is_begun = True

    async def _stored_workspace(self) -> Any:
        """Return the workspace for a request, with an archive stored. It is deleted after the chat has ended: the next
        chat needs it again.
        """
        if self._workspace not in (None, self._given):
            with suppress(RunNotFoundError):
                if not await self._loom.has_ended(self.run_id):
                    return self._workspace
        return await self._loom.upload_archive(self._given, self.run_id)

    async def _receipt(self, payload: JsonObject) -> JsonObject | None:
        for _ in range(TRIES):
            try:
                start = self._start(payload)
                asyncio.ensure_future(start.workflow_handle()).add_done_callback(_noticed)
                return await self._runs.update_or_start(start, "send_message", payload)
            except RefusedError:  # the chat has been aborted, and its run is about to end
                await asyncio.sleep(PAUSE_BETWEEN_TRIES)
        raise RefusedError(f"chat {self.session!r} accepts no more messages: it is ending")

    def _start(self, payload: JsonObject) -> WithStartWorkflowOperation[Any, Any]:
        request, asked = self._first(payload)
        memo = {TASK: asked.task[:SUMMARY_LENGTH], STARTED_BY: payload.get("by")}
        return WithStartWorkflowOperation(
            AGENT_RUN,
            request,
            id=self.run_id,
            task_queue=self._loom.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            task_timeout=TASK_TIMEOUT,
            memo={name: value for name, value in memo.items() if value},
            static_summary=asked.task[:SUMMARY_LENGTH],
            priority=Priority(priority_key=asked.priority, fairness_key=asked.tenant),
        )

    def _first(self, payload: JsonObject) -> tuple[JsonObject, RunRequest]:
        """Return the request of a chat that begins with this message."""
        request = {**self._request, "task": payload["text"], "message_id": payload["message_id"]}
        if self._given is not None:
            request["workspace"] = self._workspace or self._given
        if parts := payload.get("parts"):
            request["parts"] = parts
        return request, read_request(request)

    async def _without_worker(self, payload: JsonObject) -> None:
        """Leave the message with the server until a worker comes back. If the chat has it already, this does nothing.

        The request that no worker has answered may have started the run.
        """
        try:
            await self._runs.signal(self.run_id, "send_message", payload)
        except (RunNotFoundError, RefusedError):
            name = payload["message_id"]
            raise UnreachableError(f"the server has not taken message {name!r}: send it again with this id") from None

    def own_run_id(self, message_id: str) -> str:
        """Return the id of the run that answers this message, if it was sent with `own_run`."""
        # The escaped message id can't make this id another owner's chat, nor a sub-agent of this one.
        return f"{self.run_id}-{escaped(message_id)}"

    async def _own_run(self, text: str, message_id: str, turn: int, by: str) -> str:
        """Start the run that answers the message beside the chat, and return its id. It is started once."""
        run_id = self.own_run_id(message_id)
        with suppress(RunExistsError):
            if turn:
                await self._loom.fork(self.run_id, turn=turn, message=text, fork_id=run_id, by=by)
            else:
                others = {name: value for name, value in self._request.items() if name != "chat"}
                await self._loom.start(text, run_id=run_id, by=by, **others)  # type: ignore[arg-type]
        return run_id

    async def _forgotten(self, message_id: str) -> ChatAnswer:
        """Return an answer that only the stream still has."""
        found = None
        with suppress(StreamUnavailable):
            async with closing(self._loom.events(self.run_id)) as events:
                async for event in events:
                    if event.task.action is Action.ANSWER and message_id in _answered_ids(event.task.parameters):
                        found = event.task.result
        if found is None:
            raise RefusedError(f"the chat has answered message {message_id!r}, but no longer remembers how")
        return _answer_in(found)


def _owner_of(request: RunRequest) -> Owner:
    return Owner(user_id=request.user_id or "", tenant=request.tenant or "")


def _noticed(started: "asyncio.Future[Any]") -> None:
    """Retrieve the error of a start, which its update raises, too. Otherwise, asyncio prints it with its traceback."""
    if not started.cancelled():
        started.exception()


def _answered_ids(parameters: JsonObject) -> Sequence[str]:
    return parameters.get("message_ids") or ()


def _answer_of(result: RunResult, message_id: str) -> ChatAnswer:
    """Return a run's result as the answer to a message."""
    return ChatAnswer(
        message_ids=(message_id,),
        status=result.status,
        output=result.output if result.status is RunStatus.COMPLETED else "",
        at=datetime.now().astimezone(),
        structured_output=result.structured_output,
        error=result.error,
        turns=result.turns,
        usage=_usage(result.usage),
        cost=result.cost,
        tool_calls=result.tool_calls,
    )


def _answer_in(view: JsonObject) -> ChatAnswer:
    """Return the answer that an event contains."""
    error = view.get("error")
    return ChatAnswer(
        message_ids=tuple(view["message_ids"]),
        status=RunStatus(view["status"]),
        output=view["output"],
        at=datetime.fromisoformat(view["at"]),
        structured_output=view.get("structured_output"),
        error=RunError(**error) if error else None,
        turn=view["turn"],
        turns=view["turns"],
        usage=_usage(view["usage"]),
        cost=view.get("cost"),
        tool_calls=view["tool_calls"],
    )


def _usage(view: JsonObject) -> Usage:
    return Usage(**{name: view[name] or 0 for name in Usage.__dataclass_fields__ if name in view})
