"""Tenants: the customers, teams or projects that share workers, and their limits."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from loom.domain.core.errors import BadRequest

TENANT_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
"""A tenant's name is also Temporal's fairness key, which the server limits to 64 bytes."""
USER_ID: Final = r"^[^\x00-\x1f\x7f]{1,200}$"
"""A user's id is any name of your system, such as a number, a UUID or an address, without control characters."""
DEFAULT_TENANT: Final = "default"
"""The limits under this name apply to each tenant that has no limits of its own."""

TENANT: Final = "tenant"
"""The field in the context of an error that names the tenant whose limit is reached."""

ADMISSION_ID: Final = "admission"
"""The id of the activity that a waiting run has scheduled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """The user and the tenant that a run works for. What the run leaves behind belongs to them.

    An empty name is a name of its own: `ann` without a tenant is another person than `ann` of the tenant `acme`. Facts
    without a user belong to everybody in the tenant.
    """

    user_id: str = ""
    tenant: str = ""

    @property
    def named(self) -> str:
        """The owner in messages."""
        user, tenant = (
            (f"user {self.user_id}" if self.user_id else ""),
            (f"tenant {self.tenant}" if self.tenant else ""),
        )
        return " of ".join(filter(None, (user, tenant)))


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnerFilter:
    """Whose data an operator means. None means everybody's, and an empty name means data of runs that name none."""

    tenant: str | None = None
    user_id: str | None = None


EVERYBODY: Final = OwnerFilter()

Admission: TypeAlias = Literal["", "waiting", "admitted"]
"""A run's place among the concurrent runs of its tenant. Empty if their number isn't limited."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantLimits:
    """The limits of one tenant. None means unlimited."""

    runs: int | None = None
    """The number of runs that are in progress at a time. Further runs wait. Sub-agents don't count."""
    tokens_per_day: int | None = None
    """The tokens that all runs of the tenant and their sub-agents may use on one day (UTC)."""
    usd_per_day: float | None = None
    """The amount in US dollars that they may spend on one day (UTC)."""


def checked_tenant(name: str) -> str:
    """Return the name of a tenant. Raises BadRequest if the name is invalid."""
    if not re.fullmatch(TENANT_NAME, name):
        raise BadRequest(
            f"{name!r} is not a valid name for a tenant: use at most 63 letters, digits, `.`, `_` and `-`,"
            " and begin with a letter or a digit",
            field="tenant",
        )
    return name


def limits_of(limits: Mapping[str, TenantLimits], tenant: str) -> TenantLimits:
    """Return a tenant's limits, or those that apply to each tenant without limits of its own."""
    return limits.get(tenant) or limits.get(DEFAULT_TENANT) or TenantLimits()
