"""The tools of a shop. Each tool shows one feature of tool definitions."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from struct import pack
from typing import Annotated, Literal
from zlib import compress, crc32

from pydantic import BaseModel, Field

from loom import Ask, Deny, LoomApp, Part, ToolCall, ToolContext, ToolOutput, part_of

app = LoomApp()


class Size(StrEnum):
    """The size of a parcel."""

    SMALL = "small"
    LARGE = "large"


@dataclass(frozen=True)
class Address:
    """The address of a parcel."""

    town: str
    street: str
    post_code: str = ""


@app.tool(effect="read")
def count_words(path: Path, *, at_least: int = 1) -> dict[str, int]:
    """Count how often each word occurs in a file.

    Args:
        path: The file, inside the workspace.
        at_least: Leave out words that occur less often.
    """
    words = path.read_text(encoding="utf-8").lower().split()
    counts = {word: words.count(word) for word in dict.fromkeys(words)}
    return {word: number for word, number in counts.items() if number >= at_least}


@app.tool(effect="read", timeout=10)
async def rate(weight: Annotated[float, Field(gt=0, le=30)], size: Size, country: Literal["DE", "FR"] = "DE") -> str:
    """Return the price for sending a parcel.

    :param weight: The weight in kilograms.
    :param country: The destination.
    """
    price = 4.5 + 1.2 * weight + (3 if size is Size.LARGE else 0) + (6 if country == "FR" else 0)
    return f"{price:.2f} EUR"


@app.tool(effect="idempotent", permission="ask", timeout=60)
def order_label(to: Address, size: Size, context: ToolContext, note: str | None = None) -> str:
    """Order a label for a parcel. Two orders with the same key produce only one label."""
    label = {"to": to.town, "street": to.street, "size": size, "note": note, "key": context.idempotency_key}
    file = context.workspace / f"label-{to.town.lower()}.json"
    file.write_text(json.dumps(label), encoding="utf-8")
    context.progress(f"label for {to.town} ordered")
    return f"The label is in {file.name}."


@app.tool(effect="read")
async def track(parcel: str) -> AsyncIterator[str]:
    """Track a parcel, and report each stop as soon as it is known."""
    for stop in ("accepted", "in Frankfurt", "delivered"):
        yield f"{parcel}: {stop}\n"
        await asyncio.sleep(0)


@app.tool(effect="read", ephemeral=True)
def stock(shelf: Annotated[int, Field(ge=1, le=9)]) -> Iterator[str]:
    """List the contents of a shelf."""
    for box in range(1, 4):
        yield f"shelf {shelf}, box {box}: {shelf * box} pieces\n"


@app.tool(effect="read")
def chart(values: list[int]) -> ToolOutput:
    """Draw an image with a bar for each value."""
    if max(values, default=0) > 100:
        drawn = [min(value, 100) for value in values]
        return ToolOutput(text="Bars end at 100.", parts=(_bars(drawn),), is_warning=True)
    return ToolOutput(text=f"{len(values)} bars.", parts=(_bars(values),))


class Town(BaseModel):
    """The arguments of `weather`."""

    town: str = Field(description="The town's name.")


class Weather:
    """A tool as a class. It doesn't need anything from Loom."""

    name = "weather"
    description = "Return the weather in a town."
    args_schema = Town
    is_read_only = True

    def is_available(self) -> bool | str:
        """Return whether the tool is available. It always is."""
        return True

    async def run(self, asked: Town) -> str:
        """Return the weather."""
        return f"In {asked.town} it rains."


app.register_tool(Weather)

app.create_agent(
    "clerk",
    system_prompt="You answer questions about parcels. You order nothing.",
    tools=["rate", "track", "weather", "read_file"],
    permissions={"read_file(private/**)": "deny"},
    max_turns=20,
)


@app.on_tool_call
async def only_known_towns(call: ToolCall, run_id: str) -> Deny | Ask | None:
    """Deny labels for Atlantis, and require approval for labels for Avalon."""
    town = str(dict(call.arguments.get("to") or {}).get("town", "")) if call.name == "order_label" else ""
    if town == "Atlantis":
        return Deny("Atlantis has no post office: ask for another address")
    return Ask(f"run {run_id} sends to {town}") if town == "Avalon" else None


def _bars(values: list[int]) -> Part:
    """Return a PNG image. Each bar is 8 pixels wide."""
    height = max(values, default=0) + 1
    rows = b"".join(
        b"\0" + b"".join((b"\0" if height - row <= value else b"\xff") * 8 for value in values) for row in range(height)
    )
    head = pack(">IIBBBBB", 8 * len(values), height, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", compress(rows)), (b"IEND", b""))
    data = b"".join(pack(">I", len(body)) + kind + body + pack(">I", crc32(kind + body)) for kind, body in chunks)
    return part_of(b"\x89PNG\r\n\x1a\n" + data, name="bars.png")
