"""The bodies of requests. Fields have the names and the rules of the public contract (docs/contract.md)."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from loom.domain.core.media import MOST_PARTS
from loom.domain.run.chat import WhenBusy
from loom.serve.http_input import LONGEST_ID
from loom.workflows.validation import BudgetForm, ForkForm, Form, PartForm, RunForm, SharedForm

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
NewId = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=LONGEST_ID)]


class Body(Form):
    """A JSON object. Null is the same as leaving a field out, and unknown fields are refused."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {name: value for name, value in given.items() if value is not None or name not in cls.model_fields}

    def given(self, *without: str) -> dict[str, Any]:
        """Return the fields that were given, as JSON values."""
        return self.model_dump(mode="json", exclude_unset=True, exclude=set(without))


class StartRun(Body, RunForm):
    """A new run. Only `task` is required."""

    run_id: NewId | None = Field(
        None, description="An ID of your choice. If it is already in use, the request is refused and nothing starts."
    )
    crew: Text | dict[str, Any] | None = Field(
        None, description="A registered crew that works on the task, or the definition of one, instead of an agent."
    )


class ForkRun(Body, ForkForm):
    """A new run that continues a past turn of another run. The other fields change fields of that run's request."""

    turn: int = Field(ge=0, description="The turn after which the new run begins. 0 is the start of the other run.")
    message: Text | None = Field(None, description="A message that the agent gets at that point.")
    run_id: NewId | None = Field(None, description="An ID of your choice for the new run.")


class ChatMessage(Body, SharedForm):
    """A message of a chat. `tenant` and `user_id` say whose chat it is. The other fields of a request, such as `agent`,
    apply if the message begins the chat.
    """

    text: Text
    message_id: Annotated[Text, StringConstraints(max_length=100)] | None = Field(
        None, description="An ID of your choice. A message that is sent again with the same ID is answered once."
    )
    when_busy: WhenBusy = Field("queue", description="What the message does while the agent works on another one.")
    parts: tuple[PartForm, ...] = Field((), strict=False, max_length=MOST_PARTS)
    agent: NewId = "default"
    skills: tuple[NewId, ...] = Field((), strict=False)
    output_schema: dict[str, Any] | None = None


class Approve(Body):
    """Approves a pending call."""

    call_id: Text | None = Field(None, description="The pending call. You may leave it out if only one is pending.")
    scope: Literal["once", "run"] = Field(
        "once", description="run: also approve similar calls for the rest of the run."
    )
    arguments: dict[str, Any] | None = Field(None, description="Run the call with these arguments instead.")
    digest: Text | None = Field(None, description="Approve only if the pending call still has this digest.")


class Deny(Body):
    """Denies a pending call."""

    call_id: Text | None = Field(None, description="The pending call. You may leave it out if only one is pending.")
    reason: str = Field("", description="The reason, which the model gets.")


class Abort(Body):
    """Aborts the run."""

    reason: str = Field("", description="The reason, which becomes part of the run's result.")


class Nothing(Body):
    """An empty object. You may also leave the body out."""


class NewMessage(Body):
    """A message to the agent, or the answer to its question."""

    text: Text
    parts: tuple[PartForm, ...] = Field((), strict=False, max_length=MOST_PARTS)


class Permissions(Body):
    """Rules to merge into the run's own rules."""

    rules: dict[str, Literal["allow", "ask", "deny"]] = Field(min_length=1)


class Retry(Body):
    """Lets a run go on that waits or has ended."""

    model: Text | None = None
    max_turns: int | None = Field(None, ge=1, le=100_000)
    budget: BudgetForm | None = None
    message: str = ""
