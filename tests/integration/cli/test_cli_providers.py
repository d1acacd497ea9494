"""`loom providers`, and what `loom doctor` says of them."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from loom.activities.adapters.in_process_permits import InProcessPermits
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.permits import RedisPermits
from loom.activities.model_permits import Outcome, Permit, PermitRequest, PermitRules
from loom.exit_codes import COMPLETED, UNREACHABLE, USAGE
from loom.testing.harness import Addresses
from tests.commands import Commands, commands_in

FAILED = Outcome(kind="failed", because="LLMUnavailableError: no connection")


@pytest.fixture
def loom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    with commands_in(tmp_path, monkeypatch, TEMPORAL_ADDRESS="127.0.0.1:1") as commands:
        yield commands


@pytest.fixture
def model(addresses: Addresses) -> str:
    """A model that five calls have failed at, with a limit of ten per minute, in an hour from now.

    So the breaker is open and its minute not over for as long as a test takes.
    """
    name = f"openai:m-{uuid4().hex[:6]}"
    then = round((time.time() + 3600) * 1000)

    async def fail() -> None:
        async with aclosing(RedisConnection(addresses.redis)) as link:
            rules = PermitRules(rpm=10, tpm=5000)
            permits = RedisPermits(link, rules, alone=InProcessPermits(), clock=lambda: then)
            own = PermitRequest(account="acc", model=name, caller="w", agent="writer", rpm=2)
            await permits.take(own)
            for number in range(5):
                permit = await permits.take(PermitRequest(account="acc", model=name, caller=str(number), tokens=100))
                assert isinstance(permit, Permit)
                await permits.settle(permit, FAILED)
            await permits.take(PermitRequest(account="acc", model=name))

    asyncio.run(fail())
    return name


def test_providers_shows_state_failures_and_limits(
    loom: Commands, addresses: Addresses, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOM_REDIS_URL", addresses.redis)
    ran = loom("providers")
    line, own = [line.split() for line in ran.out.splitlines() if line.startswith(f"{model} ")]
    assert ran.code == COMPLETED
    assert line[1:3] == ["open,", "probe"]
    assert line[-10:] == ["5", "of", "5", "6", "of", "10", "500", "of", "5000", "1"]
    assert own == [model, "(agent", "writer)", "1", "of", "2", "0"]
    assert f"{model}: {FAILED.because}" in ran.out.splitlines()


def test_programs_read_the_same_as_json(
    loom: Commands, addresses: Addresses, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOM_REDIS_URL", addresses.redis)
    found: list[dict[str, Any]] = json.loads(loom("providers", "--json").out)
    (state,) = [each for each in found if each["model"] == model and not each["agent"]]
    assert 0 < state.pop("seconds") <= 3605
    assert state == {
        "model": model,
        "account": "acc",
        "agent": "",
        "state": "open",
        "calls": 5,
        "failures": 5,
        "because": FAILED.because,
        "rpm": 6,
        "rpm_limit": 10,
        "tpm": 500,
        "tpm_limit": 5000,
        "waiting": 1,
    }


def test_doctor_names_a_model_that_is_not_called(
    loom: Commands, addresses: Addresses, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOM_REDIS_URL", addresses.redis)
    part = json.loads(loom("doctor", "--json").out)["parts"]["providers"]
    assert not part["ok"]
    assert f"{model} is open: {FAILED.because}" in part["hint"]


def test_without_redis_there_is_nothing_to_show(loom: Commands) -> None:
    ran = loom("providers")
    assert (ran.code, "without Redis each worker counts its own calls" in ran.err) == (USAGE, True)


def test_a_redis_that_does_not_answer_is_named(loom: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_REDIS_URL", "redis://127.0.0.1:1")
    ran = loom("providers")
    assert (ran.code, "Redis does not respond" in ran.err) == (UNREACHABLE, True)
