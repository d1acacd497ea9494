"""Combine several tool sets with the tools that belong to a single run. The sets may change at any time."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from loom.activities.ports import Tool, ToolSet
from loom.activities.toolbox.built_in.made_tools import MadeTools
from loom.activities.toolbox.built_in.skills import SkillTools
from loom.domain.core.tool_calls import ToolSpec


class JoinedToolSets(Mapping[str, Tool]):
    """All tools from all sets, sorted by name. Earlier sets take precedence."""

    def __init__(self, *boxes: ToolSet) -> None:
        self._boxes = boxes

    def __getitem__(self, name: str) -> Tool:
        """Return the tool with that name."""
        for box in self._boxes:
            if (tool := box.get(name)) is not None:
                return tool
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names in sorted order."""
        return iter(sorted({name for box in self._boxes for name in box}))

    def __len__(self) -> int:
        """Return the number of names."""
        return len({name for box in self._boxes for name in box})


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTools:
    """Tools that belong to a single run: tools that its agent created, and tools from its skills."""

    made: MadeTools
    skills: SkillTools

    def added_to(self, box: ToolSet, specs: Iterable[ToolSpec]) -> ToolSet:
        """Return the tool set plus the tools that these specs describe."""
        every = tuple(specs)
        return self.skills.added_to(self.made.added_to(box, every), every)
