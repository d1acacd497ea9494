"""A worker with real parts for attacks on runs."""

from tests.integration.workflows.conftest import Working, working

__all__ = ["Working", "working"]
