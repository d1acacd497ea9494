"""Charge each model call to its tenant, and refuse calls that exceed the tenant's limits for a day (UTC).

The longest reply that the limits cover is reserved before a call. Afterwards, the difference is given back. Concurrent
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
from loom.domain.core.tenants import TenantLimits, limits_of
from loom.domain.core.tokens import conversation_tokens, text_tokens, tools_tokens
from loom.domain.tree.budget import Share, Spend

_log = structlog.get_logger("loom.model")

RESERVE_TRIES = 3
"""How often a call looks again after other calls of the tenant have taken what was left."""


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
        limits = limits_of(self.limits, call.tenant) if call.tenant else TenantLimits()
        share = _share_of_day(limits)
        if share == Share():
            return await self.provider.answer(call, on_delta)
        day = datetime.now(UTC).date()
        bound = await self._reserved(call, limits, day)
        try:
            answer = await self.provider.answer(replace(call, max_output_tokens=bound.output), on_delta)
        except LoomError:
            await self._give_back(call, day, bound.reserved)
            raise
        micros = await self.prices.cost_micros(self.model, answer.usage) or 0
        await self._give_back(
            call,
            day,
            Spend(
                tokens=bound.reserved.tokens - answer.usage.total_tokens,
                micros=bound.reserved.micros - micros,
            ),
        )
        return answer

    async def _reserved(self, call: ModelCall, limits: TenantLimits, day: date) -> Covered:
        """Charge the call's maximum usage to the tenant."""
        prompt = text_tokens(call.system) + conversation_tokens(call.messages) + tools_tokens(call.tools)
        share = left = _share_of_day(limits)
        need = Spend()
        for _ in range(RESERVE_TRIES):
            left = share.minus(await self.accounts.used(call.tenant, day))
            bound = await covered(
                self.prices,
                self.model,
                prompt=prompt,
                most=call.max_output_tokens,
                allowance=left,
                last=not call.may_call,
            )
            if isinstance(bound, Uncovered):
                need = bound.need
                break
            if not share.shortfall(await self.accounts.charge(call.tenant, day, bound.reserved)):
                return bound
            await self._give_back(call, day, bound.reserved)
            need = bound.reserved
        raise _spent(call.tenant, limits, left, need)

    async def _give_back(self, call: ModelCall, day: date, amounts: Spend) -> None:
        try:
            back = Spend(tokens=-amounts.tokens, micros=-amounts.micros)
            await self.accounts.charge(call.tenant, day, back)
        except StoreUnavailable as error:
            _log.warning("tenant_not_settled", tenant=call.tenant, error=str(error), **amounts.named)


def _share_of_day(limits: TenantLimits) -> Share:
    micros = None if limits.usd_per_day is None else round(limits.usd_per_day * 1_000_000)
    return Share(tokens=limits.tokens_per_day, micros=micros)


def _spent(tenant: str, limits: TenantLimits, left: Share, need: Spend) -> BudgetExceededError:
    if left.tokens is not None and left.tokens < need.tokens:
        field, told = "tokens_per_day", f"{max(0, left.tokens):,} of {limits.tokens_per_day:,} tokens"
        next_call = f"{need.tokens:,} tokens"
    else:
        field, told = "usd_per_day", f"${max(0, left.micros or 0) / 1e6:.4f} of ${limits.usd_per_day:g}"
        next_call = f"${need.micros / 1e6:.4f}"
    return BudgetExceededError(
        f"tenant {tenant!r} has {told} left today, and the next model call may take {next_call}: start again after"
        f" midnight UTC, or raise `{field}` of the tenant.",
        tenant=tenant,
        limit=field,
    )
