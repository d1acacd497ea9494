"""Several boxes of tools as one, each as it is at the moment of asking."""

from collections.abc import Iterator, Mapping

from activities.ports import Tool, ToolBox


class JoinedBoxes(Mapping[str, Tool]):
    """All tools of all boxes, sorted by name; an earlier box wins a name from a later one."""

    def __init__(self, *boxes: ToolBox) -> None:
        self._boxes = boxes

    def __getitem__(self, name: str) -> Tool:
        """The tool of that name."""
        for box in self._boxes:
            if (tool := box.get(name)) is not None:
                return tool
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        """The names, sorted."""
        return iter(sorted({name for box in self._boxes for name in box}))

    def __len__(self) -> int:
        """How many names there are."""
        return len({name for box in self._boxes for name in box})
