"""Charge each model call to its tenant, and refuse calls that exceed the tenant's limits for a day (UTC).

Before a call, the longest reply that the limits cover is reserved. Afterward, the difference is given back. Concurrent
calls therefore never exceed a limit together. If a worker dies during a call, the reserved amounts stay charged.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime

import structlog

from loom.activities.budget_reservation import Covered, Uncovered, covered
from loom.activities.ports import LLMProvider, ModelAnswer, ModelCall, OnDelta, Prices, Providers, StoreUnavailable
from loom.activities.tenants.ports import TenantAccounts
from loom.domain.core.errors import BudgetExceededError, LoomError
from loom.domain.core.messages import Usage
from loom.domain.core.requests import ModelOptions
from loom.domain.core.tenants import TenantLimits, limits_of
from loom.domain.tree.budget import Share, Spend

_log = structlog.get_logger("loom.model")

RESERVE_TRIES = 3
"""How many times a call checks again after the tenant's other calls have taken what was left."""


class MeteredProviders:
    """`Providers` that charge calls to tenants."""

    def __init__(
        self, providers: Providers, *, limits: Mapping[str, TenantLimits], accounts: TenantAccounts, prices: Prices
    ) -> None:
        self._providers = providers
        self._limits = limits
        self._accounts = accounts
        self._prices = prices

    def resolve(self, model: str) -> tuple[LLMProvider, str]:
        """See the port."""
        provider, name = self._providers.resolve(model)
        return _Metered(provider, model, self._limits, self._accounts, self._prices), name

    def check_options(self, model: str, options: ModelOptions) -> None:
        """See the port."""
        self._providers.check_options(model, options)


@dataclass(frozen=True, slots=True)
class _Metered:
    """A provider whose calls are charged to tenants."""

    provider: LLMProvider
    model: str
    limits: Mapping[str, TenantLimits]
    accounts: TenantAccounts
    prices: Prices

    async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
        """See the port. Raises BudgetExceededError if the tenant's limits don't cover the call."""
        payer = self._payer(call)
        if payer is None:
            return await self.provider.answer(call, on_delta)
        bound = await self._reserved(call, payer)
        try:
            answer = await self.provider.answer(replace(call, max_output_tokens=bound.output), on_delta)
        except LoomError as error:
            await self._settle(payer, bound.reserved, await self._spent(error.used or Usage()))
            raise
        await self._settle(payer, bound.reserved, await self._spent(answer.usage))
        return answer

    async def _spent(self, usage: Usage) -> Spend:
        micros = await self.prices.cost_micros(self.model, usage)
        return Spend(tokens=usage.total_tokens, micros=micros or 0)

    def _payer(self, call: ModelCall) -> "_Payer | None":
        tenant = call.origin.tenant if call.origin else ""
        limits = limits_of(self.limits, tenant) if tenant else TenantLimits()
        payer = _Payer(tenant=tenant, limits=limits, day=datetime.now(UTC).date())
        return None if payer.share == Share() else payer

    async def _reserved(self, call: ModelCall, payer: "_Payer") -> Covered:
        """Charge the call's maximum usage to the tenant."""
        prompt, last = call.expected_prompt, not call.may_call
        need, left = Spend(), payer.share
        for _ in range(RESERVE_TRIES):
            left = payer.share.minus(await self.accounts.used(payer.tenant, payer.day))
            bound = await covered(
                self.prices, self.model, prompt=prompt, most=call.max_output_tokens, allowance=left, last=last
            )
            if isinstance(bound, Uncovered):
                raise payer.spent(left, bound.need)
            if not payer.share.shortfall(await self.accounts.charge(payer.tenant, payer.day, bound.reserved)):
                return bound
            need = bound.reserved
            await self._settle(payer, need, Spend())
        raise payer.spent(left, need)

    async def _settle(self, payer: "_Payer", reserved: Spend, used: Spend) -> None:
        """Give back what a call reserved but didn't use."""
        back = Spend(tokens=used.tokens - reserved.tokens, micros=used.micros - reserved.micros)
        try:
            await self.accounts.charge(payer.tenant, payer.day, back)
        except StoreUnavailable as error:
            _log.warning("tenant_not_settled", tenant=payer.tenant, error=str(error), **reserved.named)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Payer:
    """The tenant that pays for a call, and the day that the call is charged to."""

    tenant: str
    limits: TenantLimits
    day: date

    @property
    def share(self) -> Share:
        """The amounts that the tenant may use on one day."""
        dollars = self.limits.usd_per_day
        return Share(tokens=self.limits.tokens_per_day, micros=None if dollars is None else round(dollars * 1_000_000))

    def spent(self, left: Share, need: Spend) -> BudgetExceededError:
        """Return the error for a call that needs more than is left."""
        if left.tokens is not None and left.tokens < need.tokens:
            field, told = "tokens_per_day", f"{max(0, left.tokens):,} of {self.limits.tokens_per_day:,} tokens"
            next_call = f"{need.tokens:,} tokens"
        else:
            field, told = "usd_per_day", f"${max(0, left.micros or 0) / 1e6:.4f} of ${self.limits.usd_per_day:g}"
            next_call = f"${need.micros / 1e6:.4f}"
        return BudgetExceededError(
            f"tenant {self.tenant!r} has {told} left today, and the next model call may take {next_call}: start again"
            f" after midnight UTC, or raise `{field}` of the tenant.",
            tenant=self.tenant,
            limit=field,
        )
