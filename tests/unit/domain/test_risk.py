"""What a person is told of the risk of a call that asks."""

import pytest

from loom.domain.core.tool_calls import Effect, PreparedCall
from loom.domain.permissions.risk import RISKS, risk_of


@pytest.mark.parametrize(
    ("tool", "effect", "rule", "risk"),
    [
        ("read_file", Effect.READ, "read_file", "reads only"),
        ("write_file", Effect.IDEMPOTENT, "built-in", "changes files in the workspace"),
        ("edit_file", Effect.ONCE, "built-in", "changes files in the workspace"),
        ("bash", Effect.ONCE, "bash(ls:*)", "may change something for good, not safe to repeat"),
        ("bash", Effect.ONCE, "guard: git reset --hard", "may destroy work (guard)"),
        ("bash", Effect.ONCE, "guard: write to .bashrc", "changes a file that controls programs (guard)"),
        ("write_file", Effect.IDEMPOTENT, "guard: write to .env", "changes a file that controls programs (guard)"),
        ("http_fetch", Effect.READ, "built-in", "reaches the network, reads only"),
        ("mcp__shop__find", Effect.READ, "mcp__shop", "reaches an MCP server, reads only"),
        ("mcp__shop__put", Effect.IDEMPOTENT, "declared", "reaches an MCP server, changes something, safe to repeat"),
        ("book", Effect.IDEMPOTENT, "declared", "changes something, safe to repeat"),
        ("delegate_task", Effect.READ, "hook look", "starts sub-agents, whose calls are judged separately"),
        ("create_tool", Effect.READ, "declared", "adds a tool, whose calls are judged separately"),
        ("start_run", Effect.ONCE, "hook look", "lets the run begin"),
    ],
)
def test_the_risk_is_the_worst_that_is_known_of_a_call(tool: str, effect: Effect, rule: str, risk: str) -> None:
    assert risk_of(tool, PreparedCall(effect=effect, rule=rule)) == risk
    assert risk in RISKS
