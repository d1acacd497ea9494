"""The waits that servers name in headers, fields and texts."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from loom.activities.adapters.models.retry_waits import retry_after

TEXTS = [
    ("Rate limit reached for gpt-5. Please try again in 6.5s.", 6.5),
    ("Please try again in 1m30s.", 90),
    ("Please try again in 20ms. Visit the page", 0.02),
    ("Please try again in 6m0s.", 360),
    ("Please try again in 2m59.56s", 179.56),
    ("Please try again in 1h2m3s.", 3723),
    ("Please try again in 6 minutes and 10 seconds.", 370),
    ("Please retry after 59 seconds.", 59),
    ("Please retry in 37.5s.", 37.5),
    ("Please wait 30 seconds before you send more.", 30),
    ("The model is loading: retry in about 2 min", 120),
    ("请求过于频繁，请在30秒后重试", 30),
    ("请 5 分钟之后再试", 300),
    ("Please try again later.", None),
    ("Limit 6000 per 60s, used 12", None),
    ("try again in a moment", None),
    ("try again in 5 mistakes", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "seconds"), TEXTS)
def test_a_wait_in_the_text_is_read(text: str, seconds: float | None) -> None:
    assert retry_after({}, text) == seconds


FIELDS: list[tuple[dict[str, Any], float | None]] = [
    ({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37s"}, 37),
    ({"retryDelay": "1.5s"}, 1.5),
    ({"retryDelay": {"seconds": 3, "nanos": 500_000_000}}, 3.5),
    ({"retryDelay": {"seconds": "12"}}, 12),
    ({"retryDelay": {"seconds": {}}}, None),
    ({"retryDelay": "soon"}, None),
    ({"retryDelay": None}, None),
    ({"retry_after": 8}, 8),
    ({"retry_after_ms": 1500}, 1.5),
    ({"retryAfter": "4.5"}, 4.5),
    ({"retry_after": True}, None),
    ({"retry_after": float("nan")}, None),
    ({"retry_after": 10**400}, None),
    ({"retry_after": -3}, 0),
    ({"headers": {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "30"}}, 30),
    ({"headers": {"Retry-After": "9"}}, 9),
]


@pytest.mark.parametrize(("fields", "seconds"), FIELDS)
def test_a_wait_in_the_fields_is_read(fields: dict[str, Any], seconds: float | None) -> None:
    assert retry_after({}, "quota", [{}, fields]) == seconds


HEADERS = [
    ({"retry-after": "17"}, 17),
    ({"Retry-After": "17"}, 17),
    ({"retry-after": "9", "retry-after-ms": "1500"}, 1.5),
    ({"retry-after": "30s"}, 30),
    ({"retry-after": "0"}, 0),
    ({"retry-after": "-5"}, 0),
    ({"retry-after": "inf"}, None),
    ({"retry-after": "nan"}, None),
    ({"retry-after": "9" * 5000}, None),
    ({"x-ratelimit-reset-requests": "1s"}, 1),
    ({"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "0"}, 360),
    ({"x-ratelimit-reset-tokens": "2m59.56s", "x-ratelimit-remaining-tokens": "17"}, None),
    (
        {
            "x-ratelimit-remaining-requests": "14",
            "x-ratelimit-reset-requests": "1h",
            "x-ratelimit-remaining-tokens": "0",
            "x-ratelimit-reset-tokens": "7.66s",
        },
        7.66,
    ),
    ({"x-ratelimit-reset-requests": "3s", "x-ratelimit-reset-tokens": "5s"}, 5),
    ({"ratelimit-reset": "40", "ratelimit-remaining": "0"}, 40),
    ({"ratelimit-reset": "40", "ratelimit-remaining": "3"}, None),
    ({"x-ratelimit-reset": "whenever"}, None),
    ({"x-reset": "5"}, None),
    ({}, None),
]


@pytest.mark.parametrize(("headers", "seconds"), HEADERS)
def test_a_wait_in_the_headers_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


LATER = datetime.now(UTC) + timedelta(seconds=3600)
EPOCH = int(LATER.timestamp())


@pytest.mark.parametrize(
    "headers",
    [
        {"retry-after": format_datetime(LATER, usegmt=True)},
        {"retry-after": LATER.isoformat()},
        {"anthropic-ratelimit-tokens-reset": LATER.isoformat(), "anthropic-ratelimit-tokens-remaining": "0"},
        {"anthropic-ratelimit-input-tokens-reset": f"{LATER:%Y-%m-%dT%H:%M:%SZ}"},
        {"anthropic-ratelimit-unified-reset": str(EPOCH)},
        {"x-ratelimit-reset": str(EPOCH)},
        {"x-ratelimit-reset": str(EPOCH * 1000)},
        {"x-ratelimit-reset": f"{EPOCH}.5"},
    ],
)
def test_a_wait_may_be_a_time(headers: dict[str, str]) -> None:
    left = (LATER - datetime.now(UTC)).total_seconds()  # less than an hour: the headers are as old as this process
    wait = retry_after(headers)
    assert wait is not None
    assert abs(wait - left) < 60


@pytest.mark.parametrize("at", ["2001-01-01T00:00:00Z", "1100000000", "0001-01-01T00:00:00+14:00"])
def test_a_time_that_has_passed_asks_for_no_wait(at: str) -> None:
    assert retry_after({"x-ratelimit-reset": at}) == 0


def test_what_says_more_precisely_how_long_to_wait_counts() -> None:
    resets = {"x-ratelimit-reset-tokens": "50s"}
    assert retry_after({"retry-after": "1", **resets}, "try again in 2s", [{"retryDelay": "3s"}]) == 1
    assert retry_after({"retry-after": "soon", **resets}, "try again in 2s", [{"retryDelay": "3s"}]) == 3
    assert retry_after(resets, "try again in 2s") == 2
    assert retry_after(resets) == 50


def test_a_server_that_failed_names_a_limit_only_if_the_limit_is_exhausted() -> None:
    reset = {"x-ratelimit-reset": "20"}
    assert retry_after(reset, is_limited=False) is None
    assert retry_after({**reset, "x-ratelimit-remaining": "5"}, is_limited=False) is None
    assert retry_after({**reset, "x-ratelimit-remaining": "0"}, is_limited=False) == 20
