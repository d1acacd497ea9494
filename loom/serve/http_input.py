"""How requests are read: strict JSON, and run IDs that contain slashes."""

import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import quote, unquote

from fastapi import Path, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import AfterValidator
from pydantic_core import from_json
from starlette.types import ASGIApp, Receive, Scope, Send

from loom.client import LONGEST_RUN_ID
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import canonical
from loom.domain.core.suggestions import nearest

LONGEST_ID: Final = LONGEST_RUN_ID
"""Maximum number of characters of a name."""

LONGEST_TEXT: Final = 1_000_000
"""Maximum number of characters of a field. A worker that handles much longer ones stands still for seconds."""

RunId: TypeAlias = Annotated[
    str,
    Path(description="The run's ID. Encode each `/` in the ID of a sub-agent as `%2F`.", max_length=LONGEST_ID * 3),
    AfterValidator(unquote),
]


class EncodedSlashes:
    """Middleware that tells an encoded slash in a path from a plain one, because IDs of sub-agents contain slashes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Decode everything in the path but `/` and `%`, which a route's parameter decodes."""
        if scope["type"] == "http" and b"%2" in scope.get("raw_path", b""):
            steps = scope["raw_path"].decode("ascii", "replace").split("/")
            scope = {**scope, "path": "/".join(quote(unquote(step), safe=_ALL_BUT_SLASH) for step in steps)}
        await self._app(scope, receive, send)


_ALL_BUT_SLASH: Final = "".join(map(chr, range(32, 127))).replace("/", "").replace("%", "")


class StrictJsonRequest(Request):
    """A request whose body must be JSON that can be stored: without NaN, and without unpaired surrogates."""

    async def json(self) -> Any:
        """Return the parsed body. Raises JSONDecodeError if it isn't JSON."""
        try:
            return from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise json.JSONDecodeError(str(error), "", 0) from None


class StrictJsonRoute(APIRoute):
    """A route that reads its body as strict JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the usual handler."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            return await handle(StrictJsonRequest(request.scope, request.receive))

        return handled


def refuse_unknown_parameters(request: Request) -> None:
    """Raise BadRequest if the address has a query parameter that its route doesn't declare."""
    known = _parameters(request.scope["route"].dependant)
    if unknown := next((name for name in request.query_params if name not in known), None):
        hint = nearest(unknown, known, f"known: {', '.join(sorted(known))}" if known else "leave it out")
        raise BadRequest(f"there is no query parameter {unknown!r}; {hint}", field=unknown)


def _parameters(dependant: Dependant) -> set[str]:
    below = (_parameters(each) for each in dependant.dependencies)
    return {field.alias for field in dependant.query_params}.union(*below)


def refuse_long(fields: Mapping[str, Any]) -> None:
    """Raise BadRequest if a field is too long. The `data` of `parts` and of an archive may be longer: its content is
    stored elsewhere.
    """
    texts = {
        "parts": [{**part, "data": None} for part in fields.get("parts") or ()],
        "workspace": _without_archive(fields.get("workspace")),
    }
    for name, value in {**fields, **texts}.items():
        if len(value if isinstance(value, str) else canonical({name: value})) > LONGEST_TEXT:
            raise BadRequest(
                f"{name} must have at most {LONGEST_TEXT:,} characters: attach longer content as `parts`", field=name
            )


def _without_archive(workspace: Any) -> Any:
    match workspace:
        case {"archive": {"data": str()} as archive}:
            return {**workspace, "archive": {**archive, "data": None}}
    return workspace


async def disconnected(receive: Receive) -> None:
    """Wait until the client of a request whose body has been read has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
