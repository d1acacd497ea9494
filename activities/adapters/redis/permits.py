"""Permits that all workers count together in Redis. Each method takes one round trip, with one script.

`adapters.in_process_permits` follows the same rules and is easier to read. A test compares the two, step by step.

Redis keys. They expire an hour after their last use:
    loom:permits                     sorted set: the names below, by the time of their last use
    loom:permits:{name}              hash: the state of the circuit breaker
    loom:permits:{name}:entered      sorted set: the calls of the last minute under a limit, by time
    loom:permits:{name}:waiting      sorted set: the calls that wait, by turn and arrival
    loom:permits:{name}:due          sorted set: the same calls, by the time when they come back
    loom:permits:{name}:served       set: the sessions that have had the latest turn
    loom:permits:{name}:tokens       hash: the tokens of these calls, the latest turn, and the limits

A name is `account model agent`. The agent is empty for the limits and the circuit breaker that all agents share.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from loom.activities.model_permits import (
    FIRST_OPEN_MS,
    LATE_MS,
    LONGEST_PAUSE_MS,
    PAUSE_MS,
    PROBE_ANSWERS_MS,
    PROBE_MS,
    RECENT,
    RESERVED_MS,
    SPACING_MS,
    SPREAD_MS,
    WINDOW_MS,
    Outcome,
    Permit,
    PermitRequest,
    PermitRules,
    Permits,
    Wait,
    WaitReason,
)
from loom.activities.ports import StreamUnavailable

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from loom.activities.adapters.redis.connection import RedisConnection

_INDEX: Final = "loom:permits"
_KEEP_SECONDS: Final = 3600
_REASONS: Final[tuple[WaitReason, ...]] = ("open", "paused", "limit")
_DIGITS: Final = 12
"""The number of hexadecimal digits that stand for a session or a caller."""
_ARRIVALS: Final = 1_000_000
_KEYS: Final = 5
"""The number of keys for each limit."""

MOMENT: Final = 0.1
"""Seconds in which a worker gives permits without asking Redis again."""
_UNCOUNTED: Final = -1
"""The number of these permits. Redis counts permits from 1, and a breaker without a probe has 0."""

# Use the server's clock, because the clocks of two machines may differ. Tests set the time.
_NOW: Final = """
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local function number(value) return tonumber(value or '0') or 0 end
"""

_TAKE: Final = (
    _NOW
    + f"""
local index, breaker, name = KEYS[1], KEYS[2], ARGV[2]
local session, member, tokens = ARGV[3], ARGV[3] .. ARGV[4], tonumber(ARGV[5])
local agent, insists = ARGV[6], ARGV[7] == '1'
redis.call('ZADD', index, now, name)
if agent ~= '' then redis.call('ZADD', index, now, agent) end
redis.call('EXPIRE', index, {_KEEP_SECONDS})
local is = redis.call('HMGET', breaker, 'open_until', 'probe', 'probe_until', 'paused_until', 'place')
local open_until, probe, probe_until, paused_until = number(is[1]), number(is[2]), number(is[3]), number(is[4])

local function next_place()
  local place = redis.call('HINCRBY', breaker, 'place', 1) - 1
  return place * {SPACING_MS} % {SPREAD_MS}
end
local is_probed = probe > 0 and probe_until > now
if open_until > now and (is_probed or not insists) then
  local later = number(is[5]) > 0 and {PROBE_ANSWERS_MS} or 0
  return {{0, open_until - now + later + next_place()}}
end
if open_until > 0 and is_probed then return {{0, {PROBE_ANSWERS_MS} + next_place()}} end
if paused_until > now and not insists then return {{1, paused_until - now + next_place()}} end

local function forget(entered, waiting, due, sizes)
  local last = now - {WINDOW_MS}
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', entered, '-inf', last)) do
    redis.call('HINCRBY', sizes, 'sum', -number(redis.call('HGET', sizes, old)))
    redis.call('HDEL', sizes, old)
  end
  redis.call('ZREMRANGEBYSCORE', entered, '-inf', last)
  for _, late in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', now - {LATE_MS})) do
    redis.call('ZREM', waiting, late)
    redis.call('HDEL', sizes, late)
  end
  redis.call('ZREMRANGEBYSCORE', due, '-inf', now - {LATE_MS})
end

-- A score orders the waiting calls by turn, and within a turn by arrival.
local function place_of(waiting, sizes, served)
  local known = redis.call('ZSCORE', waiting, member)
  if known then return tonumber(known) end
  local turn = number(redis.call('HGET', sizes, 'turn')) + redis.call('SISMEMBER', served, session)
  for _, call in ipairs(redis.call('ZREVRANGE', waiting, 0, -1)) do
    if string.sub(call, 1, {_DIGITS}) == session then
      turn = math.max(turn, math.floor(redis.call('ZSCORE', waiting, call) / {_ARRIVALS}) + 1)
      break
    end
  end
  return turn * {_ARRIVALS} + (number(redis.call('HGET', sizes, 'arrivals')) + 1) % {_ARRIVALS}
end

local function reserved(waiting, due, sizes, place)
  local count, sum = 0, 0
  for _, call in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', now + {RESERVED_MS})) do
    if tonumber(redis.call('ZSCORE', waiting, call)) < place then
      count, sum = count + 1, sum + number(redis.call('HGET', sizes, call))
    end
  end
  return count, sum
end

-- The sums after each of these calls, until one exceeds the limit.
local function summed(sizes, calls, limit)
  local sum = 0
  for first = 1, #calls, 1000 do
    local last = math.min(first + 999, #calls)
    for n, size in ipairs(redis.call('HMGET', sizes, unpack(calls, first, last))) do
      sum = sum + number(size)
      if sum >= limit then return sum, first + n - 1 end
    end
  end
  return sum, #calls
end

local function free_at(entered, waiting, sizes, place, need, rpm, tpm, used)
  local free, before = now, '(' .. string.format('%.0f', place)
  local over = redis.call('ZCARD', entered) + redis.call('ZCOUNT', waiting, '-inf', before) - rpm
  if rpm > 0 and over >= 0 then
    local leaving = redis.call('ZRANGE', entered, over % rpm, over % rpm, 'WITHSCORES')
    free = (leaving[2] or now) + {WINDOW_MS} * (1 + math.floor(over / rpm))
  end
  if tpm > 0 then
    local excess = used + need - tpm + summed(sizes, redis.call('ZRANGEBYSCORE', waiting, '-inf', before), math.huge)
    local leaving = redis.call('ZRANGE', entered, 0, -1)
    if excess > 0 then
      local freed, n = summed(sizes, leaving, excess)
      local at = now + {WINDOW_MS} * (1 + math.floor((excess - freed) / tpm))
      if freed >= excess then at = redis.call('ZSCORE', entered, leaving[n]) + {WINDOW_MS} end
      free = math.max(free, at)
    end
  end
  return free
end

local function limits_of(i)
  local first = 8 + (i - 3) / {_KEYS} * 2
  return number(ARGV[first]), number(ARGV[first + 1])
end

local wait, places, needs = 0, {{}}, {{}}
for i = 3, #KEYS, {_KEYS} do
  local entered, waiting, due, served, sizes = KEYS[i], KEYS[i + 1], KEYS[i + 2], KEYS[i + 3], KEYS[i + 4]
  local rpm, tpm = limits_of(i)
  forget(entered, waiting, due, sizes)
  local place = place_of(waiting, sizes, served)
  places[i], needs[i] = place, tpm > 0 and math.min(tokens, tpm) or tokens
  local count, used = redis.call('ZCARD', entered), number(redis.call('HGET', sizes, 'sum'))
  local soon, soon_tokens = reserved(waiting, due, sizes, place)
  if (rpm > 0 and count + soon >= rpm) or (tpm > 0 and used + soon_tokens + needs[i] > tpm) then
    wait = math.max(wait, 1, free_at(entered, waiting, sizes, place, needs[i], rpm, tpm, used) - now)
  end
end

local permit = 0
if wait == 0 then
  permit = redis.call('HINCRBY', breaker, 'number', 1)
  if open_until > 0 then redis.call('HSET', breaker, 'probe', permit, 'probe_until', now + {PROBE_MS}) end
  redis.call('EXPIRE', breaker, {_KEEP_SECONDS})
end
for i = 3, #KEYS, {_KEYS} do
  local entered, waiting, due, served, sizes = KEYS[i], KEYS[i + 1], KEYS[i + 2], KEYS[i + 3], KEYS[i + 4]
  local rpm, tpm = limits_of(i)
  local place, need = places[i], needs[i]
  if wait > 0 then
    if redis.call('ZADD', waiting, 'NX', string.format('%.0f', place), member) == 1 then
      redis.call('HINCRBY', sizes, 'arrivals', 1)
    end
    redis.call('ZADD', due, now + wait, member)
    redis.call('HSET', sizes, member, need)
  else
    redis.call('ZREM', waiting, member)
    redis.call('ZREM', due, member)
    redis.call('HDEL', sizes, member)
    local turn = math.floor(place / {_ARRIVALS})
    local latest = number(redis.call('HGET', sizes, 'turn'))
    if turn > latest then
      redis.call('HSET', sizes, 'turn', turn)
      redis.call('DEL', served)
    end
    if turn >= latest then redis.call('SADD', served, session) end
    local call = session .. permit
    redis.call('ZADD', entered, now, call)
    redis.call('HSET', sizes, call, need)
    redis.call('HINCRBY', sizes, 'sum', need)
  end
  redis.call('HSET', sizes, 'rpm', rpm, 'tpm', tpm)
  for k = i, i + {_KEYS} - 1 do redis.call('EXPIRE', KEYS[k], {_KEEP_SECONDS}) end
end
if wait > 0 then return {{2, wait}} end
return {{3, 0, permit, (open_until > 0 or paused_until > now) and 1 or 0}}
"""
)

_SETTLE: Final = (
    _NOW
    + f"""
local breaker = KEYS[1]
local session, permit, probes, kind = ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1', ARGV[5]
local tokens, retry_after, because = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local failures, longest = tonumber(ARGV[9]), tonumber(ARGV[10])
for i = 2, #KEYS do
  local old = tokens and redis.call('HGET', KEYS[i], session .. permit)
  if old then
    redis.call('HSET', KEYS[i], session .. permit, tokens)
    redis.call('HINCRBY', KEYS[i], 'sum', tokens - number(old))
  end
end

local is = redis.call('HMGET', breaker, 'open_until', 'openings', 'probe', 'paused_until', 'pauses', 'recent',
  'closed_at')
local open_until, openings, probe = number(is[1]), number(is[2]), number(is[3])
local paused_until, pauses, recent, closed_at = number(is[4]), number(is[5]), is[6] or '', number(is[7])

local function open()
  local until_then = now + math.min(longest, {FIRST_OPEN_MS} * 2 ^ math.min(openings, 20))
  redis.call('HSET', breaker, 'open_until', until_then, 'openings', openings + 1, 'probe', 0, 'place', 0,
    'because', because)
end
if kind == 'throttled' then
  if paused_until <= now then
    pauses = pauses + 1
    redis.call('HSET', breaker, 'pauses', pauses, 'place', 0)
  end
  local pause = math.min(60000, {PAUSE_MS} * 2 ^ math.max(0, math.min(pauses - 1, 20)))
  if retry_after then pause = math.min({LONGEST_PAUSE_MS}, retry_after) end
  redis.call('HSET', breaker, 'paused_until', math.max(paused_until, now + pause))
elseif kind == 'answered' and probes then
  paused_until = 0
  redis.call('HSET', breaker, 'paused_until', 0)
end
if open_until > 0 then
  if probes and (kind == 'answered' or kind == 'throttled') then
    redis.call('HSET', breaker, 'open_until', 0, 'probe', 0, 'recent', '', 'closed_at', now)
  elseif permit == probe then
    if kind == 'failed' then open() else redis.call('HSET', breaker, 'probe', 0) end
  end
elseif kind == 'failed' then
  recent = string.sub(recent .. '1', -{RECENT})
  redis.call('HSET', breaker, 'recent', recent)
  local _, failed = string.gsub(recent, '1', '')
  if failures > 0 and failed >= failures and 2 * failed >= #recent then open() end
elseif kind == 'answered' then
  if now >= closed_at + longest then openings = 0 end
  if now >= paused_until then pauses = 0 end
  redis.call('HSET', breaker, 'recent', string.sub(recent .. '0', -{RECENT}), 'pauses', pauses,
    'openings', openings)
end
redis.call('EXPIRE', breaker, {_KEEP_SECONDS})
return 1
"""
)


class RedisPermits:
    """`Permits` of all workers that use this Redis server. While the server is unavailable, `alone` decides."""

    def __init__(
        self, link: "RedisConnection", rules: PermitRules, *, alone: Permits, clock: Callable[[], int] | None = None
    ) -> None:
        """`clock` returns milliseconds. Without it, the server's clock applies."""
        self._link = link
        self._rules = rules
        self._alone = alone
        self._clock = clock

    async def take(self, request: PermitRequest) -> Permit | Wait:
        """See the port."""
        limited = [(name, rpm, tpm) for name, rpm, tpm in self._limited(request) if rpm or tpm]
        shared = _name(request)
        keys = (_INDEX, _key(shared), *(key for name, _, _ in limited for key in _bucket(name)))
        own = limited[-1][0] if request.rpm or request.tpm else ""
        given = (shared, _digest(request.session), _digest(request.caller), request.tokens, own, int(request.insists))
        limits = (limit or 0 for _, rpm, tpm in limited for limit in (rpm, tpm))
        try:
            code, wait, *granted = await self._link.script(_TAKE, keys, (self._now, *given, *limits))
            if granted:
                number, probes = granted
                return Permit(request=request, number=number, probes=probes == 1, is_shared=True)
            reason = _REASONS[code]
            because = await self._because(shared) if reason == "open" else ""
        except StreamUnavailable:
            return await self._alone.take(request)
        return Wait(seconds=wait / 1000, reason=reason, because=because)

    async def settle(self, permit: Permit, outcome: Outcome) -> None:
        """See the port. If the server has become unavailable, the outcome is lost."""
        if not permit.is_shared:
            await self._alone.settle(permit, outcome)
            return
        request = permit.request
        keys = (_key(_name(request)), *(_bucket(name)[-1] for name, _, _ in self._limited(request)))
        told = (
            "" if outcome.tokens is None else outcome.tokens,
            "" if outcome.retry_after is None else round(outcome.retry_after * 1000),
            outcome.because,
        )
        rules = (self._rules.failures, round(self._rules.longest_open * 1000))
        known = (_digest(request.session), permit.number, int(permit.probes), outcome.kind)
        arguments = (self._now, *known, *told, *rules)
        if outcome.kind == "answered" and not permit.probes:
            self._link.script_later(_SETTLE, keys, arguments)  # no other call waits for this
            return
        with suppress(StreamUnavailable):
            await self._link.script(_SETTLE, keys, arguments)

    @property
    def _now(self) -> int | str:
        return "" if self._clock is None else self._clock()

    def _limited(self, request: PermitRequest) -> Sequence[tuple[str, int | None, int | None]]:
        shared = (_name(request), self._rules.rpm, self._rules.tpm)
        if not (request.rpm or request.tpm):
            return (shared,)
        return shared, (_name(request, request.agent), request.rpm, request.tpm)

    async def _because(self, name: str) -> str:
        async def read(redis: "Redis") -> str:
            told: Any = await redis.hget(_key(name), "because")
            return (told or b"").decode("utf-8", "replace")

        return await self._link.call(read)


class RecentPermits:
    """`Permits` that give a permit without asking Redis if the last one was given a moment ago.

    This saves a round trip in most calls of a busy worker. It only applies to calls without limits. A failure that this
    worker has seen counts at once, and one that another worker has seen counts after `MOMENT`.
    """

    def __init__(self, shared: Permits, rules: PermitRules, clock: Callable[[], float] = monotonic) -> None:
        """`clock` returns seconds."""
        self._shared = shared
        self._is_limited = bool(rules.rpm or rules.tpm)
        self._clock = clock
        self._given_at: dict[tuple[str, str], float] = {}
        """When Redis last let a call of an account to a model through, while the breaker was closed."""

    async def take(self, request: PermitRequest) -> Permit | Wait:
        """See the port."""
        if self._is_limited or request.rpm or request.tpm:
            return await self._shared.take(request)
        called, now = (request.account, request.model), self._clock()
        if now - self._given_at.get(called, -math.inf) < MOMENT:
            return Permit(request=request, number=_UNCOUNTED, is_shared=True)
        found = await self._shared.take(request)
        if isinstance(found, Permit) and found.is_shared and not found.probes:
            self._given_at[called] = now
        return found

    async def settle(self, permit: Permit, outcome: Outcome) -> None:
        """See the port."""
        if outcome.kind in ("failed", "throttled"):
            self._given_at.pop((permit.request.account, permit.request.model), None)
        await self._shared.settle(permit, outcome)


@dataclass(frozen=True, kw_only=True, slots=True)
class PermitState:
    """The state of one model's permits, or of one agent's own limits for a model."""

    model: str
    account: str
    agent: str
    state: str
    """`closed`, `open`, `half-open`, or `paused` after a 429 response. Empty for an agent's own limits."""
    calls: int
    """The number of latest calls that the breaker judges, up to 20."""
    failures: int
    seconds: float
    """The number of seconds until the next probe, or until the end of the pause."""
    because: str
    rpm: int
    """The number of requests in the last minute, if there is a limit."""
    rpm_limit: int | None
    tpm: int
    tpm_limit: int | None
    waiting: int
    """The number of calls that wait under the limits, or were turned away since the breaker opened."""


async def read_states(redis: "Redis") -> Sequence[PermitState]:
    """Return the state of all permits that were used in the last hour, sorted by name."""
    seconds, micros = await redis.time()
    now = seconds * 1000 + micros // 1000
    names: Any = await redis.zrangebyscore(_INDEX, now - _KEEP_SECONDS * 1000, "+inf")
    return [await _state(redis, name.decode(), now) for name in sorted(names)]


async def _state(redis: "Redis", name: str, now: int) -> PermitState:
    entered, _, due, _, sizes = _bucket(name)
    async with redis.pipeline(transaction=True) as asked:
        asked.hgetall(_key(name))
        asked.hgetall(sizes)
        asked.zrangebyscore(entered, f"({now - WINDOW_MS}", "+inf")
        asked.zcount(due, now - LATE_MS, "+inf")
        breaker, tokens, calls, waiting = await asked.execute()
    is_ = {field.decode(): value.decode("utf-8", "replace") for field, value in breaker.items()}
    recent = is_.get("recent", "")
    account, model, agent = name.split(" ", 2)
    until, open_until = (int(is_.get(field, 0)) for field in ("paused_until", "open_until"))
    state = "open" if open_until > now else "half-open" if open_until else "paused" if until > now else "closed"
    turned_away = int(is_.get("place", 0)) if state != "closed" else 0
    return PermitState(
        model=model,
        account=account,
        agent=agent,
        state="" if agent else state,
        calls=len(recent),
        failures=recent.count("1"),
        seconds=max(0, (open_until or until) - now) / 1000,
        because=is_.get("because", "") if open_until else "",
        rpm=len(calls),
        rpm_limit=int(tokens.get(b"rpm", 0)) or None,
        tpm=sum(int(tokens.get(call, 0)) for call in calls),
        tpm_limit=int(tokens.get(b"tpm", 0)) or None,
        waiting=waiting + turned_away,
    )


def _name(request: PermitRequest, agent: str = "") -> str:
    return f"{request.account} {request.model} {agent}"


def _key(name: str) -> str:
    return f"{_INDEX}:{name}"


def _bucket(name: str) -> tuple[str, str, str, str, str]:
    key = _key(name)
    return f"{key}:entered", f"{key}:waiting", f"{key}:due", f"{key}:served", f"{key}:tokens"


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "replace"), digest_size=_DIGITS // 2).hexdigest()
