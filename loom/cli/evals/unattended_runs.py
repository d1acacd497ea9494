"""Unattended runs: start them, and follow them to their end. Nobody approves calls or answers questions."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from loom.cli.arguments import user_name
from loom.cli.watch.follower import Follower, approve_all
from loom.cli.watch.json_display import ResultOnly
from loom.cli.watch.pending_approvals import Decision, PendingQuestion
from loom.client import LoomClient
from loom.domain.core.errors import RunExistsError
from loom.domain.core.requests import RunResult
from loom.pending_approvals import PendingApproval

_NOBODY: Final = "nobody can approve it, because this run is part of an eval"
_NO_ANSWER: Final = "Nobody can answer questions here. Decide for yourself, and continue."


async def begun(loom: LoomClient, run_id: str, request: Mapping[str, Any]) -> None:
    """Start the run, unless the same command has started it before."""
    with suppress(RunExistsError):
        await loom.start(run_id=run_id, by=_by(), **request)


async def ended(loom: LoomClient, run_id: str, *, approves: bool) -> RunResult:
    """Follow the run to its end, and approve or deny the calls that would wait for a person."""
    display = _Display(run_id, approves=approves)
    decide = approve_all if approves else _deny
    return await Follower(loom, run_id, display, decide, _by(), replier=_no_answer).follow()


class _Display(ResultOnly):
    """Hides approvals and questions, because they are answered at once."""

    def approval_opened(self, ask: PendingApproval) -> None:
        """Show nothing."""

    def question_opened(self, question: PendingQuestion) -> None:
        """Show nothing."""


async def _deny(ask: PendingApproval) -> Decision:
    del ask
    return Decision(approved=False, reason=_NOBODY)


async def _no_answer(question: PendingQuestion) -> str:
    del question
    return _NO_ANSWER


def _by() -> str:
    return f"{user_name()} (loom eval)"
