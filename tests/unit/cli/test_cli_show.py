"""What `loom show` prints of a turn: one entry for each call, in the order in which the model made them."""

from typing import Final

from loom.cli.commands.show import turn_lines, turn_view
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.messages import JsonObject, Message, Tail, ToolCall
from loom.domain.core.tasks import Origin
from loom.domain.core.tool_calls import ToolResult
from loom.domain.history.past_turns import (
    CallNotRun,
    ChildRun,
    ModelAttempt,
    PastCall,
    PastTurn,
    ToolAttempt,
    without_secrets,
)
from loom.domain.machine.delegation import execute_task_id
from loom.domain.run.activity_payloads import ModelReply, ModelRequest, ToolRequest
from loom.domain.tree.lineage import Lineage, TreeLimits
from tests.unit.cli.test_cli_screen import DONE

ORIGIN: Final = Origin(run_id="r")
MALFORMED: Final = ToolCall(id="malformed", name="bash", malformed='{"command": s3cret')
CALLS: Final = (
    MALFORMED,
    ToolCall(id="lost", name="bash", arguments={"command": "make"}),
    ToolCall(id="child", name="delegate_task"),
    ToolCall(id="denied", name="write_file"),
    ToolCall(id="ran", name="list_dir"),
)


class Masked:
    """Redacts one secret."""

    def clean(self, text: str) -> str:
        """Return the text without it."""
        return text.replace("s3cret", "[masked]")

    def clean_arguments(self, arguments: JsonObject) -> JsonObject:
        """Return the arguments as they are."""
        return arguments


def attempted(call_id: str, tool: str, attempt: int = 1, *, content: str = "", error: str = "") -> ToolAttempt:
    """An attempt at a call."""
    request = ToolRequest(origin=ORIGIN, turn=1, call_id=call_id, tool=tool, attempt=attempt)
    return ToolAttempt(request=request, result=ToolResult(content=content) if content else None, error=error)


def a_turn() -> PastTurn:
    """A turn with a call of each kind, none of which ended in the order of the calls."""
    request = ModelRequest(origin=ORIGIN, turn=1, spec_digest="d", tail=Tail())
    reply = ModelReply(message=Message(role="assistant", content="on it", tool_calls=CALLS))
    call = PastCall(
        attempt=ModelAttempt(request=request, reply=reply), spec=AgentSpec(name="a", model="demo"), messages=()
    )
    lineage = Lineage(
        parent_run_id="r",
        root_run_id="r",
        depth=1,
        limits=TreeLimits(),
        description="look",
        task_id=execute_task_id("r", "", "child"),
    )
    return PastTurn(
        number=1,
        calls=(call,),
        tools=(
            attempted("ran", "list_dir", content="a.txt"),
            attempted("lost", "bash", error="heartbeat timeout"),
            attempted("lost", "bash", 2, content="built"),
        ),
        not_run=(
            CallNotRun(call=CALLS[3], content="Not permitted"),
            CallNotRun(call=MALFORMED, content="not JSON"),
        ),
        children=(ChildRun(run_id="r/look-1", lineage=lineage, result=DONE),),
    )


def test_each_call_has_one_entry_in_the_models_order_with_its_earlier_attempts_below_it() -> None:
    title, said, *lines = turn_lines(without_secrets(a_turn(), Masked()), {})
    assert title == "── turn 1 ──"
    assert said.startswith('  assistant: on it → bash({"command": [masked]) → bash({')
    assert [line[:48] for line in lines] == [
        "  ✗ bash: malformed arguments: not JSON",
        "  ✓ bash (attempt 2): built",
        "    attempt 1 gave no result: heartbeat timeout",
        '  ✓ r/look-1: {"task": "look", "result": "all is',
        "  ✗ write_file: Not permitted",
        "  ✓ list_dir: a.txt",
    ]


def test_programs_get_the_calls_in_the_same_order() -> None:
    made = [(call["call_id"], call["attempt"]) for call in turn_view(a_turn(), {})["tool_calls"]]
    assert made == [("malformed", 0), ("lost", 1), ("lost", 2), ("denied", 0), ("ran", 1)]
