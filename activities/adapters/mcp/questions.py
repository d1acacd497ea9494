"""Answer what a server asks during a call, before the protocol 2026-07-28."""

import structlog
from mcp.client.session import ClientRequestContext
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
)

from loom.activities.adapters.mcp.input_requests import Scrub, asked_of_model, asked_of_person, response
from loom.activities.adapters.mcp.open_calls import OpenCall, OpenCalls
from loom.activities.adapters.mcp.tasks import related_task
from loom.domain.core.errors import LoomError
from loom.domain.core.messages import canonical

_log = structlog.get_logger("loom.mcp")

_REJECTED = -1
"""The error code for a model call that a person has rejected, from the examples in the MCP specification."""


class Questions:
    """The questions of one server."""

    def __init__(self, server: str, calls: OpenCalls, redacted: Scrub) -> None:
        self._server = server
        self._calls = calls
        self._redacted = redacted
        self.are_unclear = False
        """Whether the server has asked a question that doesn't say which call it belongs to."""

    async def for_person(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        """Answer a question for a person."""
        del context
        opened = self._asking_call(related_task(params.meta))
        if opened is None:
            return ElicitResult(action="cancel")
        try:
            request = asked_of_person(params, self._server, self._redacted, number=opened.number(params.message))
        except LoomError as error:
            return ErrorData(code=INVALID_PARAMS, message=error.message)
        answer = response(await opened.ask(request))
        return answer if isinstance(answer, ElicitResult) else ElicitResult(action="cancel")

    async def for_model(
        self, context: ClientRequestContext, params: CreateMessageRequestParams
    ) -> CreateMessageResult | ErrorData:
        """Answer a model call."""
        del context
        opened = self._asking_call(related_task(params.meta))
        if opened is None:
            return ErrorData(code=INTERNAL_ERROR, message="Loom can't tell for which call this is: call again")
        try:
            text = canonical(params.model_dump(mode="json", exclude_none=True))
            verdict, number = opened.call.sampling, opened.number(text)
            request = asked_of_model(params, self._server, self._redacted, verdict=verdict, number=number)
        except LoomError as error:
            return ErrorData(code=INVALID_REQUEST, message=error.message)
        answer = await opened.ask(request)
        if answer.action != "accept":
            return ErrorData(code=_REJECTED, message=f"there is no answer: {answer.reason}")
        sampled = response(answer)
        return sampled if isinstance(sampled, CreateMessageResult) else ErrorData(code=INTERNAL_ERROR, message="")

    def _asking_call(self, task: str) -> OpenCall | None:
        self.are_unclear = self.are_unclear or not task
        opened = self._calls.of_task(task) if task else self._calls.only()
        if opened is None:
            _log.warning("mcp_question_unclear", server=self._server, calls=len(list(self._calls)))
        return opened
