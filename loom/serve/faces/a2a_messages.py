"""What A2A clients say: tasks, files, and decisions on calls."""

import re
from base64 import b64encode
from typing import Any, Final

from a2a.helpers import get_data_parts
from a2a.types import Message, Part
from a2a.utils.errors import InvalidParamsError
from pydantic import ValidationError
from pydantic_core import to_json

from loom.serve.faces.following import Decision, Waits

DECISION: Final = re.compile(r"\s*(?:(?P<yes>approve)|deny(?:\s*:\s*(?P<reason>.*?))?)\s*", re.IGNORECASE | re.DOTALL)
"""The texts that decide on a call."""


class CallDecision(Decision):
    """A data part that decides on a pending call."""

    call_id: str | None = None
    """The pending call. You can omit it if only one call is pending."""
    digest: str | None = None
    """Approve only if the pending call still has this digest."""


def task_in(message: Message) -> str:
    """Return a message as the text of a task. Data parts become JSON."""
    said = [
        part.text if part.HasField("text") else to_json(_data_in(part)).decode()
        for part in message.parts
        if part.HasField("text") or part.HasField("data")
    ]
    return "\n".join(said)


def _data_in(part: Part) -> Any:
    """Return a part's data as the client meant it: the protocol turns integers into floats, and loses the order."""
    (data,) = get_data_parts([part])
    return _as_meant(data)


def _as_meant(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_as_meant(each) for each in value]
        case dict():
            return {name: _as_meant(each) for name, each in sorted(value.items())}
        case _:
            return value


def files_in(message: Message) -> dict[str, Any]:
    """Return the files of a message as the field `parts` of a request."""
    files = [_file(part) for part in message.parts if part.HasField("raw") or part.HasField("url")]
    return {"parts": files} if files else {}


def _file(part: Part) -> dict[str, str]:
    source = {"data": b64encode(part.raw).decode()} if part.HasField("raw") else {"url": part.url}
    return {**source, "name": part.filename}


def decision_in(part: Part) -> CallDecision:
    """Return the decision in a data part. Raises InvalidParamsError."""
    try:
        return CallDecision.model_validate(_data_in(part))
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(["message.parts.data", *map(str, problem["loc"])])
        wanted = '{"approved": true}, or {"approved": false, "reason": "…"}'
        raise InvalidParamsError(f"{where}: {problem['msg']}. The data must be {wanted}") from None


def decision_of(text: str) -> CallDecision:
    """Return the decision that a text expresses. Raises InvalidParamsError."""
    said = DECISION.fullmatch(text)
    if said is None:
        raise InvalidParamsError(
            "message.parts: a call waits for approval; answer `approve`, or `deny: REASON`, or send a data part"
        )
    return CallDecision(approved=said["yes"] is not None, reason=said["reason"] or "")


def with_call(decision: CallDecision, waits: Waits) -> CallDecision:
    """Return a decision that names its call. Raises InvalidParamsError."""
    if decision.call_id is not None:
        return decision
    if len(waits.calls) != 1:
        pending = ", ".join(str(call["call_id"]) for call in waits.calls) or "none"
        raise InvalidParamsError(f"message.parts: send a data part that names the `call_id`; pending calls: {pending}")
    (call,) = waits.calls
    return decision.model_copy(
        update={"call_id": str(call["call_id"]), "digest": decision.digest or call.get("digest")}
    )
