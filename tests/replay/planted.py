"""Changes that would break runs in flight, planted one at a time: the recorded histories and defaults must find each.

python -m tests.replay.planted            all of them, some twenty minutes
python -m tests.replay.planted 0 7 21     only these
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]


class Planted(NamedTuple):
    """A text in a file, and what it becomes."""

    path: str
    before: str
    after: str


PLANTED: Final = (
    # What activities are asked for
    Planted("loom_domain/machine/activity_requests.py", "effect=plan.effect_of_tool,", 'effect=Effect("read"),'),
    Planted("loom_domain/machine/activity_requests.py", "timeout=plan.timeout,", "timeout=plan.timeout * 2,"),
    Planted("loom_domain/machine/activity_requests.py", "workspace=state.agent.workspace,", 'workspace="/",'),
    Planted("loom_domain/machine/activity_requests.py", "begun=open_call.begun,", "begun=False,"),
    Planted(
        "loom_domain/machine/activity_requests.py",
        "tail=state.conversation.tail,\n        grants",
        "tail=(),\n        grants",
    ),
    Planted(
        "loom_domain/machine/activity_requests.py",
        "grants=state.calls.grants,\n        notices=state.notices.pending,\n        measures",
        "grants=(),\n        notices=state.notices.pending,\n        measures",
    ),
    Planted(
        "loom_domain/machine/activity_requests.py",
        "notices=state.notices.pending,\n        measures",
        "notices=(),\n        measures",
    ),
    Planted("loom_domain/machine/activity_requests.py", "wrap_up=state.answer.wrap_up is not None,", "wrap_up=False,"),
    Planted("workflows/activity_dispatch.py", 'f"t{state.turn} · {describe(call.call)}"', 'f"t{state.turn}"'),
    # What becomes of failures
    Planted("loom_domain/run/retry_policy.py", "if tries.lost < MAX_LOST else", "if tries.lost < 0 else"),
    Planted("loom_domain/agents/spec.py", "model_attempts: int = 3", "model_attempts: int = 2"),
    Planted("loom_domain/run/retry_policy.py", "return Again(delay=asked)", "return Again(delay=2 * asked)"),
    Planted("loom_domain/machine/model_retry.py", "tuple(others), event.at", "state.agent.fallbacks, event.at"),
    Planted("loom_domain/machine/parking.py", "first_delay=5.0", "first_delay=6.0"),
    Planted("loom_domain/machine/parking.py", "return ParkedOn.OPERATOR if has_begun else None", "return None"),
    Planted("loom_domain/machine/parking.py", "extended(state.inbox), inbox=()", "extended(())"),
    # Steering
    Planted("workflows/agent_run.py", "            handle.cancel()\n", "            pass\n"),
    Planted(
        "loom_domain/machine/steering.py",
        "outcome=Outcome(status=RunStatus.ABORTED",
        "outcome=Outcome(status=RunStatus.FAILED",
    ),
    Planted(
        "loom_domain/machine/steering.py",
        "c.stale + 1) if c.result is None and not c.exchange",
        "c.stale) if c.result is None and not c.exchange",
    ),
    Planted("loom_domain/machine/steering.py", "user(event.text, by=event.by)))\n    by", "user(event.text)))\n    by"),
    Planted(
        "workflows/agent_run.py",
        'reason="cancelled through Temporal", at=workflow.now()))\n        if not',
        'reason="cancelled", at=workflow.now()))\n        if not',
    ),
    # Limits, budgets, and the end
    Planted("loom_domain/machine/limits.py", "status=RunStatus.LIMIT_REACHED,", "status=RunStatus.COMPLETED,"),
    Planted(
        "loom_domain/machine/delegation.py", 'return failed(content, "aborted")', "return ToolResult(content=content)"
    ),
    Planted("loom_domain/run/state.py", "turns=state.turns,\n", "turns=state.turn + 1,\n"),
    Planted("loom_domain/run/state.py", "tool_calls=total_tool_calls(state),", "tool_calls=state.spending.tool_calls,"),
    Planted("loom_domain/run/state.py", "completed_explicitly=outcome.explicit,", "completed_explicitly=False,"),
    Planted("activities/failures.py", "ApplicationError(error.message, result,", "ApplicationError(error.message,"),
    # What people see
    Planted("workflows/visibility.py", '        "LoomModel": state.spec.model if state.spec else "",\n', ""),
    Planted(
        "workflows/visibility.py",
        'RunStatus.WAITING_FOR_APPROVAL: "approval"',
        'RunStatus.WAITING_FOR_APPROVAL: "input"',
    ),
    Planted("workflows/visibility.py", "cost = cost_of(state)\n", "cost = None\n"),
    # Sub-agents
    Planted("workflows/child_runs.py", "ParentClosePolicy.ABANDON\n", "ParentClosePolicy.TERMINATE\n"),
    Planted("workflows/child_runs.py", "else ParentClosePolicy.REQUEST_CANCEL", "else ParentClosePolicy.ABANDON"),
    Planted("loom_domain/machine/delegation.py", "levels=digest_of(levels(state)),", 'levels="",'),
    Planted("workflows/child_runs.py", "wrong = None if told else _error_of(error)", "wrong = None"),
    # Defaults
    Planted("loom_domain/agents/spec.py", "mode: Mode = Mode.DEFAULT", "mode: Mode = Mode.BYPASS"),
    Planted("loom_domain/agents/spec.py", "DEFAULT_MAX_TURNS: Final = 50", "DEFAULT_MAX_TURNS: Final = 5"),
    Planted(
        "workflows/options.py",
        "ONCE: Final = RetryPolicy(maximum_attempts=1)",
        "ONCE: Final = RetryPolicy(maximum_attempts=2)",
    ),
    Planted("loom/composition/settings.py", "Mode = Field(Mode.ACCEPT_EDITS", "Mode = Field(Mode.BYPASS"),
)


def is_found(planted: Planted, copy: Path) -> bool:
    """Whether the tests of this folder fail on a copy of the tree with this change."""
    path = copy / planted.path
    whole = path.read_text()
    if whole.count(planted.before) != 1:
        raise ValueError(f"{planted.path} has {whole.count(planted.before)} places with {planted.before!r}")
    path.write_text(whole.replace(planted.before, planted.after))
    try:
        tests = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/unit/replay"]
        without = ["--deselect", "tests/unit/replay/test_planted.py"]
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        ended = subprocess.run(
            [*tests, *without], cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
    finally:
        path.write_text(whole)
    if ended.returncode not in (0, 1):
        raise RuntimeError(ended.stdout + ended.stderr)
    return ended.returncode == 1


def copied(folder: Path) -> Path:
    """Copy the tree, without what is installed or built."""
    copy = folder / "tree"
    left_out = shutil.ignore_patterns(".venv", ".git", "__pycache__", ".*_cache", ".loom*", "docs")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=left_out)
    return copy


def main(chosen: list[str]) -> int:
    """Return 1 if a change isn't found."""
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        for number, planted in enumerate(PLANTED):
            if chosen and str(number) not in chosen:
                continue
            found = is_found(planted, copy)
            missed += not found
            print(f"{number:>3} {'found ' if found else 'MISSED'} {planted.path}: {planted.after.strip()}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
