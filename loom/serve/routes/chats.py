"""Chats: conversations with an agent that last for as long as people want. A run answers the messages of a session."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, TypeAlias
from urllib.parse import unquote

from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, Field

from loom.chat_ids import user_of_chat
from loom.domain.core.messages import Message
from loom.domain.run.chat import Handling, answer_view
from loom.serve.access.roles import Operation
from loom.serve.caller_runs import LONGEST_WAIT
from loom.serve.http_input import LONGEST_ID, StrictJsonRoute
from loom.serve.problems import RETRY_AFTER
from loom.serve.routes.bodies import ChatMessage
from loom.serve.routes.caller import FOLLOWS, Runs, needs
from loom.serve.routes.runs import Filter, cursor_of, read_cursor
from loom.visibility import RunSummary

router = APIRouter(prefix="/v1/chats", tags=["chats"], route_class=StrictJsonRoute)

Session: TypeAlias = Annotated[
    str,
    Path(description="The name of the session.", min_length=1, max_length=LONGEST_ID * 3),
    AfterValidator(unquote),
]
MessageId: TypeAlias = Annotated[str, Path(max_length=LONGEST_ID * 3), AfterValidator(unquote)]
User: TypeAlias = Annotated[
    str | None, Query(description="The user whose chat it is.", min_length=1, max_length=LONGEST_ID)
]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatSummary(RunSummary):
    """An entry in a list of chats."""

    user_id: str | None
    """The user whose chat it is, or an empty string. Null if the names are too long for the chat's ID."""


class ChatPage(BaseModel):
    """A page of a list of chats, newest first."""

    chats: list[ChatSummary]
    tasks: dict[str, str] | None = Field(None, exclude_if=lambda tasks: tasks is None)
    """The first 200 characters of each chat's first message, by run ID, if the request asks for `tasks`."""
    next: str | None
    """Pass it as `cursor` to get the next page. Null if this is the last page."""


class Conversation(BaseModel):
    """The messages that the agent has before it, oldest first. It may have compressed those before."""

    chat: str
    messages: list[Message]


class Sent(BaseModel):
    """A message that the server has accepted."""

    chat: str
    """The ID of the chat's run."""
    message_id: str
    run_id: str
    """The run that answers the message: the chat's, except for `own_run`."""
    handling: Handling | None
    """What the chat does with the message. Null if no worker has told so yet; the server keeps the message."""
    offset: int
    """To get the events of the answer, read the events of `run_id` after this offset."""


class Answered(BaseModel):
    """What has become of a message."""

    handling: Handling | None
    """Null if no worker has told so yet."""
    answer: dict[str, Any] | None


@router.get("", openapi_extra=needs(Operation.READ_RUNS))
async def list_chats(
    runs: Runs,
    *,
    tenant: Filter = None,
    cursor: Filter = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    tasks: Annotated[bool, Query(description="Also return the beginning of each chat's first message.")] = False,
) -> ChatPage:
    """List chats, newest first. A chat moves to the front when it is used again after a pause.

    A page can be short, or even empty, although `next` isn't null.
    """
    found = await runs.chats(tenant=tenant, after=read_cursor(cursor) if cursor else None, limit=limit)
    return ChatPage(
        chats=[ChatSummary(**asdict(run), user_id=user_of_chat(run.run_id)) for run in found.runs],
        tasks=await runs.task_summaries(found.runs) if tasks else None,
        next=cursor_of(*found.next) if found.next else None,
    )


@router.post("/{session}/messages", openapi_extra=needs(Operation.SEND))
async def send_chat_message(runs: Runs, session: Session, body: ChatMessage) -> Sent:
    """Send a message. It begins the chat, if there is none yet.

    To be able to repeat the request safely, choose the message's ID.
    """
    chat, sent, offset = await runs.send_in_chat(
        session,
        body.text,
        message_id=body.message_id,
        when_busy=body.when_busy,
        parts=body.given().get("parts"),
        request=body.given("text", "message_id", "when_busy", "parts"),
    )
    return Sent(chat=chat, offset=offset, **asdict(sent))


@router.get("/{session}/messages", openapi_extra=needs(Operation.READ_RUNS))
async def read_conversation(runs: Runs, session: Session, user_id: User = None, tenant: Filter = None) -> Conversation:
    """Return the conversation, as the agent has it before it."""
    chat, messages = await runs.messages(session, tenant=tenant, user_id=user_id)
    return Conversation(chat=chat, messages=list(messages))


@router.get(
    "/{session}/messages/{message_id}",
    response_model=Answered,
    responses={202: {"description": "The message isn't answered."}},
    openapi_extra=needs(Operation.READ_RUNS),
    dependencies=FOLLOWS,
)
async def read_answer(
    runs: Runs,
    session: Session,
    message_id: MessageId,
    *,
    user_id: User = None,
    tenant: Filter = None,
    wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT, allow_inf_nan=False)] = 0,
) -> Any:
    """Return the answer to a message. Waits for at most `wait` seconds.

    If there is no answer by then, the status is 202.
    """
    state = await runs.answer(session, message_id, tenant=tenant, user_id=user_id, wait=wait)
    if state.answer is None:
        return JSONResponse({"handling": state.handling, "answer": None}, 202, {"Retry-After": str(RETRY_AFTER)})
    return Answered(handling=state.handling, answer=answer_view(state.answer))
