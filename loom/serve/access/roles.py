"""Which role may do what. Routes, documentation and tests use the same table."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from loom.domain.core.errors import AccessDeniedError


class Role(StrEnum):
    """A role. Each role may do everything that the roles before it may do."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    APPROVER = "approver"
    ADMIN = "admin"

    def includes(self, other: "Role") -> bool:
        """Return whether this role may do everything that the other role may do."""
        return _ORDER.index(self) >= _ORDER.index(other)


_ORDER: Final = tuple(Role)


class Operation(StrEnum):
    """Something that a caller does."""

    READ_RUNS = "read runs"
    READ_FILES = "read files of runs"
    WRITE_FILES = "write files of runs"
    READ_CATALOG = "read the catalog"
    READ_METRICS = "read metrics"
    START = "start"
    FORK = "fork"
    SEND = "send"
    PAUSE = "pause"
    RESUME = "resume"
    ABORT = "abort"
    RETRY = "retry"
    APPROVE = "approve"
    DENY = "deny"
    GRANT = "grant"


NEEDED: Final[Mapping[Operation, Role]] = {
    Operation.READ_RUNS: Role.VIEWER,
    Operation.READ_FILES: Role.OPERATOR,
    Operation.WRITE_FILES: Role.APPROVER,
    Operation.READ_CATALOG: Role.VIEWER,
    Operation.READ_METRICS: Role.VIEWER,
    Operation.START: Role.OPERATOR,
    Operation.FORK: Role.OPERATOR,
    Operation.SEND: Role.OPERATOR,
    Operation.PAUSE: Role.OPERATOR,
    Operation.RESUME: Role.OPERATOR,
    Operation.ABORT: Role.OPERATOR,
    Operation.RETRY: Role.OPERATOR,
    Operation.APPROVE: Role.APPROVER,
    Operation.DENY: Role.APPROVER,
    Operation.GRANT: Role.ADMIN,
}
"""The least role that each operation needs. `GRANT` is a change of a run's permissions that may give it more rights.

A workspace may have more files than a run has shown, but an operator can have an agent read them. An agent's writes may
need an approval, so whoever writes files must be able to give it.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """An authenticated person or program."""

    name: str
    """Recorded as `by` in everything that the caller does."""
    role: Role
    tenant: str | None = None
    """The only tenant whose runs the caller sees. None: all runs."""

    def may(self, operation: Operation) -> bool:
        """Return whether the caller's role includes the operation."""
        return self.role.includes(NEEDED[operation])

    @property
    def offers(self) -> tuple[Operation, ...]:
        """The operations that the service offers the caller. Metrics are about all tenants."""
        return tuple(
            each for each in Operation if self.may(each) and (self.tenant is None or each is not Operation.READ_METRICS)
        )

    def refuse_unless_allowed(self, operation: Operation) -> None:
        """Raise AccessDeniedError if the caller's role doesn't include the operation."""
        if not self.may(operation):
            raise AccessDeniedError(
                f"{self.name!r} has the role {self.role}, but to {operation}, it needs the role {NEEDED[operation]}",
                role=self.role.value,
                needed=NEEDED[operation].value,
            )
