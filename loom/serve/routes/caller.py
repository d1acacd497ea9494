"""The caller of a request, as routes get it, and the role that a route needs, as the API's schema shows it."""

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, TypeAlias

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer

from loom.serve.access.roles import NEEDED, Operation
from loom.serve.caller_runs import CallerRuns

_bearer = HTTPBearer(scheme_name="token", auto_error=False, description="A token of Loom's, or of the issuer.")
"""Describes the header in the API's schema. `Authentication` reads it."""


def _runs_of_caller(request: Request, described: Annotated[Any, Security(_bearer)]) -> CallerRuns:
    del described
    runs: CallerRuns = request.state.runs
    return runs


Runs: TypeAlias = Annotated[CallerRuns, Depends(_runs_of_caller)]
"""What the authenticated caller may do."""


async def _followed(runs: Runs) -> AsyncIterator[None]:
    """Count the request until its response has been sent."""
    with runs.following():
        yield


FOLLOWS: Final = [Depends(_followed)]
"""The dependency of routes that follow a run or wait for it. A caller may have only so many of them open."""

ROLE: Final = "x-loom-role"
"""The field of an operation in the API's schema that contains the role that the operation needs."""


def needs(operation: Operation) -> dict[str, Any]:
    """Return what the schema says about the access to a route. `CallerRuns` enforces it."""
    return {ROLE: NEEDED[operation].value}
