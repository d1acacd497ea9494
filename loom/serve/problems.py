"""Translate errors into problem details (RFC 9457, `application/problem+json`), which name the type of the error."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from temporalio.service import RPCError

from loom.activities.adapters.temporal.errors import unanswered
from loom.activities.ports import StoreUnavailable, StreamUnavailable
from loom.domain.core.errors import (
    AccessDeniedError,
    ArtifactNotFoundError,
    BadRequest,
    LoomError,
    MessageNotFoundError,
    NoSuchFileError,
    NotAuthenticatedError,
    RefusedError,
    RunExistsError,
    RunNotFoundError,
    TooManyStreamsError,
    UnreachableError,
)
from loom.domain.core.value_problems import problem_of_value
from loom.workflows.validation import field_path, known_fields

_log = structlog.get_logger("loom.serve")

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER: Final = 2
"""Seconds after which a client may try again if a server didn't respond."""

ANTICIPATED: Final = (LoomError, StreamUnavailable, StoreUnavailable, RPCError)
"""The errors of `CallerRuns`. All others are faults of the service."""

_STATUS: Final[Mapping[type[Exception], HTTPStatus]] = {
    ArtifactNotFoundError: HTTPStatus.NOT_FOUND,
    NoSuchFileError: HTTPStatus.NOT_FOUND,
    BadRequest: HTTPStatus.UNPROCESSABLE_ENTITY,
    NotAuthenticatedError: HTTPStatus.UNAUTHORIZED,
    AccessDeniedError: HTTPStatus.FORBIDDEN,
    TooManyStreamsError: HTTPStatus.TOO_MANY_REQUESTS,
    RunNotFoundError: HTTPStatus.NOT_FOUND,
    MessageNotFoundError: HTTPStatus.NOT_FOUND,
    RunExistsError: HTTPStatus.CONFLICT,
    RefusedError: HTTPStatus.CONFLICT,
    UnreachableError: HTTPStatus.SERVICE_UNAVAILABLE,
    StreamUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    StoreUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
}


_OVER_HTTP: Final[Mapping[str, str]] = {
    "`loom list` shows all runs": "`GET /v1/runs` lists all runs",
    "pass the call's id": "pass `call_id`",
    " with `loom up`": "",
}
"""What a client of the API reads instead of advice for the command line."""


class Problem(BaseModel):
    """What went wrong. `title` is the name of the error's type in `loom.errors`."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(
        description="A URI that identifies the type of the error.", examples=["urn:loom:error:BadRequest"]
    )
    title: str = Field(description="The type of the error.", examples=["BadRequest"])
    status: int = Field(description="The HTTP status code.", examples=[422])
    detail: str = Field(description="What was wrong, and what to do.")
    field: str | None = Field(None, description="The field or parameter that was wrong.")


def add_problem_handlers(app: FastAPI) -> None:
    """Answer every error of the application with problem details."""
    for kind in (*ANTICIPATED, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _handled)
    app.add_exception_handler(Exception, _unexpected)


def address_in(scope: Mapping[str, Any]) -> str:
    """Return the network address that a request came from, as far as it is known."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def name_and_detail(error: Exception) -> tuple[str, str]:
    """Return the type of an anticipated error, and what was wrong and what to do."""
    match error:
        case RPCError():
            return name_and_detail(unanswered(error, ""))
        case LoomError():
            return type(error).__name__, error.message
        case _:
            return type(error).__name__, str(error)


def problem_of(error: Exception) -> Response:
    """Return the response for an error."""
    match error:
        case HTTPException():
            status = HTTPStatus(error.status_code)
            return _response(status, _camel(status), str(error.detail), headers=error.headers)
        case RPCError():
            return problem_of(unanswered(error, ""))
        case LoomError():
            facts = {name: value for name, value in error.context.items() if isinstance(value, str | int | float)}
            detail = error.message
            for advice, instead in _OVER_HTTP.items():
                detail = detail.replace(advice, instead)
            return _response(_status_of(error), type(error).__name__, detail, facts)
        case _:
            return _response(_status_of(error), type(error).__name__, str(error))


async def _handled(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        body = getattr(request.scope.get("route"), "body_field", None)
        return _invalid(error.errors(), None if body is None else body.field_info.annotation)
    if isinstance(error, HTTPException) and error.detail == HTTPStatus(error.status_code).phrase:
        error = HTTPException(error.status_code, _no_route(error, request), _headers(error, request))
    return problem_of(error)


def _no_route(error: HTTPException, request: Request) -> str:
    """Say why no route handles a request, instead of repeating the name of the status."""
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return f"{request.url.path} doesn't support {request.method}"
    if error.status_code == HTTPStatus.NOT_FOUND:
        return f"there is nothing at {request.url.path}; `GET /openapi.json` lists all paths"
    return error.detail


async def _unexpected(request: Request, error: Exception) -> Response:
    _log.error("request_failed", method=request.method, path=request.url.path, exc_info=error)
    detail = "the service failed; its log says why"
    return _response(HTTPStatus.INTERNAL_SERVER_ERROR, "InternalError", detail)


def _headers(error: HTTPException, request: Request) -> Mapping[str, str] | None:
    """Return the headers of the response. The framework's `Allow` leaves out methods that another function handles."""
    route = request.scope.get("route")
    if error.status_code != HTTPStatus.METHOD_NOT_ALLOWED or not isinstance(route, APIRoute):
        return error.headers
    return {"Allow": ", ".join(map(str.upper, request.app.openapi()["paths"][route.path_format]))}


def _status_of(error: Exception) -> HTTPStatus:
    return next((status for kind, status in _STATUS.items() if isinstance(error, kind)), HTTPStatus.CONFLICT)


def _invalid(errors: Sequence[Any], form: Any) -> Response:
    """`form` is the model of the body, if there is one."""
    problems = [{"field": _field(each["loc"]), "problem": _described(each, form)} for each in errors]
    detail = "; ".join(f"{each['field']} {each['problem']}".strip() for each in problems)
    malformed = any(each["type"] == "json_invalid" for each in errors)
    status = HTTPStatus.BAD_REQUEST if malformed else HTTPStatus.UNPROCESSABLE_ENTITY
    return _response(status, "BadRequest", detail, {"field": problems[0]["field"], "errors": problems})


def _described(problem: Mapping[str, Any], form: Any) -> str:
    if problem["type"] == "json_invalid":
        return f"is not valid JSON: {problem['ctx']['error']}"
    if problem["type"] == "model_attributes_type" and len(problem["loc"]) == 1:
        return "must be a JSON object, with the header Content-Type: application/json"
    said, location = problem_of_value(problem), tuple(problem["loc"])
    is_unknown = problem["type"] == "extra_forbidden" and location[0] == "body" and isinstance(form, type)
    return f"{said}{known_fields(location[1:], form)}" if is_unknown else said


def _field(location: Sequence[int | str]) -> str:
    """Return the path of a field in the body, or the name of a parameter."""
    inner = location[1:]
    is_body = location[0] == "body" and (not inner or str(inner[0]).isdecimal())
    return "the body" if is_body else field_path(inner)


def _camel(status: HTTPStatus) -> str:
    return "".join(word.capitalize() for word in status.name.split("_"))


def _response(
    status: HTTPStatus,
    name: str,
    detail: str,
    facts: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    known = {"type": f"urn:loom:error:{name}", "title": name, "status": int(status), "detail": detail}
    more = dict(headers or {})
    if status is HTTPStatus.UNAUTHORIZED:
        more["WWW-Authenticate"] = "Bearer"
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        more["Retry-After"] = str(RETRY_AFTER)
    return JSONResponse({**(facts or {}), **known}, status, more, MEDIA_TYPE)
