"""What a test does without a program that it needs: it is skipped on a developer's machine, and fails in CI."""

import os
from typing import NoReturn

import pytest


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test that runs, or fail it in CI, where nobody reads the reasons of skipped tests."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
