"""An activity of the project's own."""

from dataclasses import dataclass, replace

from temporalio import activity


@dataclass(frozen=True)
class Note:
    """What the project archives."""

    text: str
    shelf: str = "nowhere"


@activity.defn
async def archive(note: Note) -> Note:
    """Put a note on a shelf."""
    return replace(note, shelf="A 1")
