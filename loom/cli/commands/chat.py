"""The `chat` command: a conversation with an agent, message by message, at a terminal or in a pipe."""

import asyncio
import math
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from itertools import chain, repeat
from typing import Annotated, Any, Final, Literal
from uuid import uuid4

import typer
from temporalio.service import RPCError

from loom.activities.adapters.temporal.errors import is_away
from loom.activities.ports import StreamUnavailable
from loom.chat_ids import chat_run_id
from loom.chat_session import ChatSession, SentMessage
from loom.cli.arguments import (
    Agent,
    Archive,
    Attach,
    Budget,
    Git,
    Metadata,
    Model,
    ModelOptions,
    OutputSchema,
    Patience,
    PermissionMode,
    Permissions,
    Priority,
    Revision,
    Skills,
    Tenant,
    User,
    Workspace,
    named_workspace,
    new_app,
    read_attachments,
    read_fields,
    user_name,
)
from loom.cli.connection import with_client
from loom.cli.output import console, one_line, plain, print_json, print_notice
from loom.cli.run_names import remember_started
from loom.cli.watch.approval_prompt import Prompter
from loom.cli.watch.follower import Follower
from loom.cli.watch.keyboard import Keyboard, at_terminal
from loom.cli.watch.screen import Screen
from loom.client import LoomClient
from loom.composition.live_workers import live_pollers
from loom.composition.temporal_connection import RECONNECT
from loom.domain.core.errors import BadRequest, UnreachableError
from loom.domain.core.messages import Message, is_from_person
from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action, Task
from loom.domain.core.tenants import Owner
from loom.domain.run.chat import ChatAnswer, WhenBusy, answer_view
from loom.exit_codes import Unreachable
from loom.request_fields import PartFields
from loom.watching import closing

EXIT: Final = ("/exit", "/quit")
HELP: Final = "/help"
HELP_TEXT: Final = """\
Each line is a message to the agent.
  /help          show this text
  /exit, /quit   leave, as Ctrl-C and Ctrl-D do; the agent goes on with its work, and the conversation stays
While the agent works, you approve its calls and answer its questions in place.
To come back, or from another terminal:
  {command}
  {command} --when-busy interrupt "Stop, and do this instead."
  loom watch {run}
  loom abort {run}
`loom chat --help` lists the options for a new conversation."""
LAST_WORDS: Final = 6
"""How many messages of the conversation are shown when somebody comes back to it."""
PATIENCE: Final = 30.0
"""Seconds to wait for a server that has gone away, if nobody at a terminal can end the wait."""
LAST_EVENTS: Final = 3.0
"""Seconds to wait until the screen has shown an answer that has arrived."""
_WAYS: Final[dict[str, WhenBusy]] = {"queue": "queue", "interrupt": "interrupt", "own-run": "own_run"}

app = new_app()


@app.command()
def chat(
    message: Annotated[
        str | None, typer.Argument(metavar="MESSAGE", help="Send one message, print the answer and return.")
    ] = None,
    *,
    session: Annotated[str | None, typer.Option(help="Conversation to begin or to come back to.")] = None,
    attach: Attach = None,
    when_busy: Annotated[
        Literal["queue", "interrupt", "own-run"],
        typer.Option(help="What happens to a message while the agent works on another one."),
    ] = "queue",
    agent: Agent = None,
    model: Model = None,
    workspace: Workspace = None,
    git: Git = None,
    revision: Revision = None,
    archive: Archive = None,
    permissions: Permissions = None,
    model_options: ModelOptions = None,
    mode: PermissionMode = None,
    max_turns: Annotated[int | None, typer.Option(help="Maximum number of turns for each message.")] = None,
    patience: Patience = None,
    budget: Budget = None,
    skills: Skills = None,
    output_schema: OutputSchema = None,
    metadata: Metadata = None,
    priority: Priority = None,
    tenant: Tenant = None,
    user: User = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answers as JSON lines and nothing else.")] = False,
) -> None:
    """Chat with an agent, and come back to the conversation at any time.

    To come back, use the same --session, --tenant and --user, also on another machine. Equal sessions of different
    tenants or users are different conversations. `/help` shows what you can do. `/exit` and Ctrl-C leave; the agent
    goes on with its work, and the conversation stays. Without a terminal, each line of standard input is a message, and
    the answers go to standard output. The agent and its other options apply when a conversation begins.

    Exit code 5: no worker is running, or the server went away. The server keeps the message that it has, and a worker
    answers it later.
    """
    if message is not None and not message.strip():
        raise BadRequest("the message is empty: pass a text for the agent", field="text")
    if attach and message is None:
        raise BadRequest("--attach belongs to a message: pass MESSAGE, too")
    name = session or f"s-{uuid4().hex[:8]}"
    request = read_fields(
        agent=agent,
        model=model,
        workspace=named_workspace(
            workspace, git, revision, archive=archive, on_stdin="" if message else "the messages"
        ),
        permissions=permissions,
        model_options=model_options,
        mode=mode,
        max_turns=max_turns,
        patience=patience,
        budget=budget,
        skills=skills or None,
        output_schema=output_schema,
        metadata=metadata,
        priority=priority,
        tenant=tenant,
        user_id=user,
    )
    talk = _Talk(name, request, _WAYS[when_busy], as_json=as_json, in_place=at_terminal() and not as_json)
    parts = read_attachments(attach) if attach else ()
    try:
        talk.all([message] if message is not None else None, parts)
    except (KeyboardInterrupt, EOFError):
        print_notice("")
        print_notice(f"to come back: `{talk.command}`")


class _Delivery(StrEnum):
    """What is known of a message. The server may have taken a message without an answer to the request."""

    UNSENT = "isn't sent"
    UNKNOWN = "may not have arrived"
    ARRIVED = "has arrived, and its answer hasn't"


class _Talk:
    """One person's part in a conversation."""

    def __init__(
        self, session: str, request: dict[str, Any], when_busy: WhenBusy, *, as_json: bool, in_place: bool
    ) -> None:
        self._session = session
        self._request = request
        self._when_busy = when_busy
        self._as_json = as_json
        self._in_place = in_place
        self._by = request.get("user_id") or user_name()  # memory learns about the user from the user's own words
        self._seen: int | None = None
        """The offset of the last event that the screen has shown."""
        self._was_reached = False
        """Whether the server has answered. Without a server, a conversation doesn't begin."""
        self._delivery = _Delivery.UNSENT
        """What is known of the message that is being answered."""
        self._patience = PATIENCE

    @property
    def command(self) -> str:
        """The command that comes back to the conversation."""
        named = {"session": self._session, "tenant": self._request.get("tenant"), "user": self._request.get("user_id")}
        return shlex.join(["loom", "chat", *(word for name, of in named.items() if of for word in (f"--{name}", of))])

    def all(self, messages: list[str] | None, parts: Sequence[PartFields] = ()) -> None:
        """Send these messages with these parts, or else the messages that a person types or a program writes."""
        if messages is None and self._in_place:
            self._patience = math.inf
            print_notice(f"session {self._session}; /help shows what you can do, and /exit leaves")
            for said in with_client(lambda loom: self._chat(loom).messages())[-LAST_WORDS:]:
                _print_words(said)
            self._was_reached = True
        for text in messages or self._lines():
            self._print(self._answered(text, parts))

    def _answered(self, text: str, parts: Sequence[PartFields]) -> ChatAnswer:
        """Send a message and return the answer. If the server goes away, wait until it is back and send it again.

        Raises UnreachableError if it stays away, unless a person at a terminal can end the wait.

        The message keeps its id, so it is answered once, even if the server has it already.
        """
        message_id, self._delivery = uuid4().hex[:16], _Delivery.UNSENT
        away_since = None
        for pause in chain(RECONNECT, repeat(RECONNECT[-1])):
            try:
                return with_client(lambda loom: self._ask(loom, text, message_id, parts))
            except UnreachableError as error:
                is_first = away_since is None
                away_since = time.monotonic() if away_since is None else away_since
                delivery = f"the message {self._delivery}: {one_line(text)}"
                is_given_up = time.monotonic() - away_since + pause > self._patience
                if not self._was_reached or not is_away(error) or is_given_up:
                    error.add_note(delivery)
                    raise
                if is_first:
                    print_notice(f"{error.message}\n{delivery}\nwaiting until the server is back; Ctrl-C leaves")
            time.sleep(pause)
        raise AssertionError  # `repeat` never ends

    def _lines(self) -> Iterator[str]:
        while True:
            if self._in_place:
                line: str = input("› ")
            elif not (line := sys.stdin.readline()):
                return
            if line.strip() in EXIT:
                return
            if line.strip() == HELP:
                print_notice(self._help())
            elif line.strip():
                yield line.strip()

    def _help(self) -> str:
        owner = Owner(user_id=self._request.get("user_id") or "", tenant=self._request.get("tenant") or "")
        return HELP_TEXT.format(command=self.command, run=shlex.quote(chat_run_id(self._session, owner)))

    def _chat(self, loom: LoomClient) -> ChatSession:
        return ChatSession(loom, self._session, **self._request)

    async def _ask(self, loom: LoomClient, text: str, message_id: str, parts: Sequence[PartFields]) -> ChatAnswer:
        chat = self._chat(loom)
        if self._in_place and self._seen is None:
            self._seen = await _last_offset(loom, chat.run_id)
        sent = await self._send(chat, text, message_id, parts)
        remember_started(loom, sent.run_id)
        if sent.handling is None:
            if not await _is_served(loom):
                raise Unreachable(
                    "no worker is running. The message is stored, and a worker will answer it once: start one with "
                    f"`loom worker` or `loom up`, and come back with `{self.command}`"
                )
            print_notice("no worker has responded yet; the message waits for one")
        elif sent.handling == "queued":
            print_notice("the agent is at work; the message waits for its turn")
        elif sent.handling == "own_run":
            print_notice(f"the agent is at work; run {sent.run_id} answers")
        if not self._in_place:
            return await chat.answer(sent)
        screen = _AnswerScreen(sent.run_id, sent.message_id)
        is_own = sent.run_id != chat.run_id
        answer = await _watched(loom, chat, sent, screen, 0 if is_own else self._seen or 0)
        if not is_own:
            self._seen = max(self._seen or 0, screen.offset)
        return answer

    async def _send(self, chat: ChatSession, text: str, message_id: str, parts: Sequence[PartFields]) -> SentMessage:
        if self._delivery is _Delivery.UNSENT:
            self._delivery = _Delivery.UNKNOWN
        sent = await chat.send(text, parts=parts, when_busy=self._when_busy, message_id=message_id, by=self._by)
        self._delivery, self._was_reached = _Delivery.ARRIVED, True
        return sent

    def _print(self, answer: ChatAnswer) -> None:
        if self._as_json:
            print_json(answer_view(answer))
        elif answer.output and not self._in_place:  # the screen has shown it
            console().print(plain(answer.output), soft_wrap=True)
        if answer.status is not RunStatus.COMPLETED:
            why = f": {answer.error.message}" if answer.error else ""
            print_notice(f"{answer.status}{why}")


class _AnswerScreen(Screen):
    """A screen that tells when it has shown the answer to a message."""

    def __init__(self, run_id: str, message_id: str) -> None:
        super().__init__(console(), run_id, live=True, answerable=True, replies=True)
        self._message_id = message_id
        self.has_shown_answer = asyncio.Event()
        self.offset = 0
        """The offset of the last event."""

    def event(self, offset: int, task: Task) -> None:
        """See base class."""
        self.offset = offset
        said = task.action is Action.MESSAGE and task.parameters.get("message_id") == self._message_id
        if task.action is not Action.ANSWER and not said:
            super().event(offset, task)
        if task.action is Action.ANSWER and self._message_id in task.parameters.get("message_ids", ()):
            self.has_shown_answer.set()
        if task.action in (Action.COMPLETE, Action.ERROR):
            self.has_shown_answer.set()


async def _watched(
    loom: LoomClient, chat: ChatSession, sent: SentMessage, screen: _AnswerScreen, after: int
) -> ChatAnswer:
    """Show the work on a message, ask for approvals in place, and return the answer."""
    keyboard = Keyboard(sys.stdin.fileno())
    prompter = Prompter(screen, keyboard, sent.run_id, loom.workspace_of)
    follower = Follower(loom, sent.run_id, screen, prompter.answer, user_name(), replier=prompter.reply)
    with keyboard.opened():
        async with screen.moving():
            following = asyncio.create_task(follower.follow(after, just_started=True))
            answering = asyncio.create_task(chat.answer(sent))
            try:
                await asyncio.wait({following, answering}, return_when=asyncio.FIRST_COMPLETED)
                answer = await answering
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_EVENTS):
                        await screen.has_shown_answer.wait()
            finally:
                for task in (following, answering):
                    task.cancel()
                await asyncio.gather(following, answering, return_exceptions=True)
    return answer


async def _is_served(loom: LoomClient) -> bool:
    """Whether a worker is running, as far as the server tells."""
    try:
        return bool(await live_pollers(loom.temporal, loom.task_queue))
    except RPCError:
        return True


async def _last_offset(loom: LoomClient, run_id: str) -> int:
    """Return the offset of the stream's last event, or 0 if there is no stream."""
    last = 0
    with suppress(StreamUnavailable):
        async with closing(loom.events(run_id)) as events:
            async for event in events:
                last = event.offset
    return last


def _print_words(said: Message) -> None:
    """Print a message of a person or of the agent."""
    if is_from_person(said):
        print_notice(f"› {one_line(said.text, 400)}")
    elif said.role == "assistant" and said.text:
        print_notice(plain(said.text))
