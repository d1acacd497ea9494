"""A failure stays one: a plugin of pytest that lets go of what a failed test has left open."""

import gc
import sys
import warnings
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, bool, bool]:
    """Collect the garbage of a failed test, so that no later test is blamed for it.

    The traceback of a failure holds the test's sockets. If the garbage collector closed them during another test, their
    ResourceWarning would be that test's failure.
    """
    done = yield
    if getattr(sys, "last_value", None) is not None:
        for name in ("last_value", "last_traceback", "last_exc"):  # pytest keeps them for a debugger
            setattr(sys, name, None)
        with warnings.catch_warnings(action="ignore"):
            gc.collect()
    return done
