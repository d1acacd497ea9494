"""The demo model as a member of a crew: what it makes of the crew's task, and of what others have brought."""

import re

from loom.activities.adapters.models.demo.scene import LABEL
from loom.domain.core.messages import ToolCall
from tests.unit.activities.test_demo_model import FILES, Talk, workspace

MEMBER = (
    "You are 'clerk' in the crew 'desk'. Knows it all.\n\nYour part: Look up the answer.\n\n"
    "The crew's task: {}\n\nWhat members have brought:\n\n## scout\nA refund."
    "\n\nYou are a sub-agent and work on this task alone. Whoever gave it to you sees nothing but your final answer:"
)
HANDBOOK = {"pay.md": "# Pay\n\n- Invoices are charged once.\n- A refund takes a week.\n", "a.md": "- Open at 8.\n"}


async def looked_up(request: str) -> tuple[list[list[str]], str]:
    """The turns and the answer of a member that looks the request up in the handbook."""

    def grep(call: ToolCall) -> tuple[str, bool]:
        assert call.arguments["ignore_case"]
        pattern = re.compile(call.arguments["pattern"], re.IGNORECASE)
        lines = ((p, n, line) for p, text in HANDBOOK.items() for n, line in enumerate(text.splitlines(), 1))
        hits = [f"{p}:{n}:{line}" for p, n, line in lines if pattern.search(line)]
        return "\n".join(hits or ["(no line matches)"]), False

    talk = Talk(MEMBER.format(request), grep, ("grep", "read_file"))
    return talk.turns, await talk.run()


async def test_what_is_looked_up_are_the_lines_with_most_of_the_requests_words() -> None:
    turns, found = await looked_up("Why was my invoice charged twice?")
    assert turns == [["grep"], []]
    assert found.splitlines() == [f"{LABEL}this is what the files say:", "- pay.md:3:- Invoices are charged once."]
    assert (await looked_up("Sing about zebras."))[1] == f"{LABEL}no file here says anything about sing, zebras."
    assert (await looked_up("Oh?"))[1] == f"{LABEL}the request contains no words that I can look for."


async def test_the_findings_of_others_are_compared_with_its_own() -> None:
    there, tools = workspace(FILES)
    brought = "- **high** shop.py:3: looks like a hard-coded secret\n- **low** shop.py:99: unfinished"
    await Talk(f"The crew's task: Audit.\n\nWhat members have brought:\n\n## scout\n{brought}", tools).run()
    compared = there["report.md"].partition("## Findings from others")[2]
    assert "1 of the 2 reported findings were also found here." in compared
    assert "Not found here:\n\n- **low** shop.py:99: unfinished" in compared
    assert "## Task\n\n> Audit.\n\n" in there["report.md"]
