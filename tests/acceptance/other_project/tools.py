"""The project's app: a tool that gets the catalogue by its type."""

from collections.abc import AsyncIterator

from deploy import REGION

from loom import Deny, LoomApp, ToolCall

app = LoomApp()


class Catalogue:
    """Where the shelves are known."""

    def __init__(self) -> None:
        self.marks = {"loom": f"L 7 ({REGION})"}


@app.provide
async def catalogue() -> AsyncIterator[Catalogue]:
    """Open the catalogue."""
    yield Catalogue()


@app.tool(effect="read")
async def shelf_mark(title: str, catalogue: Catalogue) -> str:
    """Tell where a book stands."""
    return catalogue.marks[title]


@app.on_tool_call
def no_shell(call: ToolCall, run_id: str) -> Deny | None:
    """Keep the agent out of the shell."""
    return Deny("there is no shell here") if call.name == "bash" else None
