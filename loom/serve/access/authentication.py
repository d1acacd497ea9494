"""Find out who calls, before anything else of a request is looked at, and again while a request takes long."""

import asyncio
from collections.abc import Collection
from typing import Final, Literal, Protocol

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loom.activities.ports import StoreUnavailable
from loom.domain.core.errors import AccessDeniedError, LoomError, NotAuthenticatedError
from loom.serve.access.roles import Caller
from loom.serve.caller_runs import Service
from loom.serve.problems import address_in, problem_of

CHECKED_EVERY: Final = 2.0
"""Seconds between two checks whether the caller of a long request may still call. With the time for which a service
relies on what it knows about a token, a revoked token ends everywhere within five seconds.
"""
NO_LONGER: Final = "the token has expired or was revoked while the request was waiting"


class Authenticator(Protocol):
    """Finds out who sends a request."""

    async def caller(self, headers: Headers) -> Caller:
        """Return who sends a request with these headers. Raises NotAuthenticatedError, AccessDeniedError and
        StoreUnavailable.
        """
        ...


class Authentication:
    """Middleware that lets only known callers through, except to public paths.

    It ends requests whose token is revoked or expires while they take long: event streams, and requests that wait.
    """

    def __init__(
        self, app: ASGIApp, *, service: Service, authenticator: Authenticator, public: Collection[str]
    ) -> None:
        self._app = app
        self._service = service
        self._authenticator = authenticator
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request. `state.runs` is what the caller may do."""
        if scope["type"] != "http" or scope["path"] in self._public:
            await self._app(scope, receive, send)
            return
        try:
            caller = await self._authenticator.caller(Headers(scope=scope))
        except (LoomError, StoreUnavailable) as error:
            if not isinstance(error, StoreUnavailable):
                self._service.audit.refused(f"{scope['method']} {scope['path']}", error, identity=address_in(scope))
            await problem_of(error)(scope, receive, send)
            return
        scope.setdefault("state", {})["runs"] = self._service.runs_for(caller, address_in(scope))
        await self._handle_while_valid(scope, receive, send)

    async def _handle_while_valid(self, scope: Scope, receive: Receive, send: Send) -> None:
        response: Literal["none", "begun", "ended"] = "none"

        async def send_and_look(message: Message) -> None:
            nonlocal response
            has_more = message["type"] == "http.response.start" or message.get("more_body", False)
            response = "begun" if has_more else "ended"
            await send(message)

        limit = asyncio.timeout(None)
        checking = asyncio.create_task(self._end_when_invalid(Headers(scope=scope), limit))
        try:
            async with limit:
                await self._app(scope, receive, send_and_look)
        except TimeoutError:
            if not limit.expired():
                raise
            match response:
                case "none":
                    await problem_of(NotAuthenticatedError(NO_LONGER))(scope, receive, send)
                case "begun":
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                case "ended":
                    pass
        finally:
            checking.cancel()

    async def _end_when_invalid(self, headers: Headers, limit: asyncio.Timeout) -> None:
        while True:
            await asyncio.sleep(CHECKED_EVERY)
            try:
                await self._authenticator.caller(headers)
            except (NotAuthenticatedError, AccessDeniedError):
                limit.reschedule(asyncio.get_running_loop().time())
                return
            except (LoomError, StoreUnavailable):
                pass  # whether the token is valid isn't known now


def bearer_token(headers: Headers) -> str | None:
    """Return the bearer token of a request, or None. Raises NotAuthenticatedError if the header has another form, or if
    there are several, of which a proxy may have looked at another one.
    """
    match headers.getlist("authorization"):
        case []:
            return None
        case [given]:
            scheme, _, token = given.partition(" ")
        case _:
            raise NotAuthenticatedError("send only one Authorization header")
    if scheme.lower() != "bearer" or not token.strip():
        raise NotAuthenticatedError("the header Authorization must be `Bearer` and a token")
    return token.strip()
