"""Several boxes of tools as one, each as it is at the moment of asking; and the tools that only one run has."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from loom.activities.ports import Tool, ToolSet
from loom.activities.toolbox.built_in.made_tools import MadeTools
from loom.activities.toolbox.built_in.skills import SkillTools
from loom.domain.core.tool_calls import ToolSpec


class JoinedToolSets(Mapping[str, Tool]):
    """All tools of all boxes, sorted by name; an earlier box wins a name from a later one."""

    def __init__(self, *boxes: ToolSet) -> None:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTools:
    """Tools that a run has by itself: those that its agent made, and those of its skills."""

    made: MadeTools
    skills: SkillTools

    def added_to(self, box: ToolSet, specs: Iterable[ToolSpec]) -> ToolSet:
        """The box with what these specs describe."""
        every = tuple(specs)
        return self.skills.added_to(self.made.added_to(box, every), every)
