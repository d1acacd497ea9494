"""Measure how many tokens a collection of skills adds to a prompt: `make bench-skills`.

The collection is tests/corpora/skills or any other folder: `python -m bench.skills FOLDER`. Loom prepares a run with
the collection, and counts the tokens of the first model call.
"""

import argparse
import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from bench.report import put, table
from loom.activities.adapters.skills.folders import SkillFolders
from loom.activities.adapters.skills.front_matter import read_skill
from loom.activities.adapters.skills.requirements import noting
from loom.activities.skills import RunSkills
from loom.activities.toolbox.built_in.skill_files import files_of, read
from loom.activities.toolbox.built_in.skills import SkillTools
from loom.domain.agents.skill_selection import hint
from loom.domain.agents.spec import AgentSpec
from loom.domain.context.model_context import Measures, build_context
from loom.domain.core.messages import user
from loom.domain.core.requests import RunRequest
from loom.domain.core.tokens import text_tokens
from loom.domain.skills.catalog import SkillFolder

COLLECTION: Final = Path(__file__).parent.parent / "tests" / "corpora" / "skills"
DOC: Final = Path(__file__).parent.parent / "docs" / "skills.md"
MARKS: Final = ("<!-- measured by make bench-skills -->", "<!-- end of what was measured -->")
TASK: Final = "Draw this part from the front and from above, and export it for printing."
WANTED: Final = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """The token counts of one collection."""

    bodies: tuple[int, ...]
    """Tokens of each skill's instructions."""
    resources: int
    """Tokens of all other text files in the skills' folders."""
    catalog: int
    """Tokens that the catalog adds to each prompt."""
    tools: int
    """Tokens that the definitions of the skill tools add."""
    hint: str
    """The hint about skills that match the task."""

    @property
    def layered(self) -> int:
        """Tokens that all skills add to each prompt before one is loaded."""
        return self.catalog + self.tools

    @property
    def saving(self) -> float:
        """The share of the instructions' tokens that a prompt saves."""
        return 1 - self.layered / sum(self.bodies)


async def measured(collection: Path) -> Figures:
    """Prepare a run with the collection, and count the tokens of its first prompt."""
    tools = SkillTools(sandbox=None, note_of_missing=noting(None))
    library = SkillFolders(home=Path("/nonexistent"), others=[SkillFolder(path=str(collection), source="bench")])
    with TemporaryDirectory() as folder:
        plain = AgentSpec(name="bench", model="demo", workspace=folder)
        general = AgentSpec(
            name="bench", model="demo", workspace=folder, tools=tuple(tool.spec for tool in tools.tools())
        )
        found = await library.find(Path(general.workspace))
        spec = (await RunSkills(library=library, tools=tools).equipped(general, RunRequest(task=TASK), found)).spec
    bare = build_context(plain, [user(TASK)], tools=(), measures=Measures())
    full = build_context(spec, [user(TASK)], tools=spec.tools, measures=Measures())
    documents = [read_skill(skill.root, "")[1] for skill in spec.skills]
    return Figures(
        bodies=tuple(text_tokens(document.body) for document in documents),
        resources=sum(_text_in(skill.root) for skill in spec.skills),
        catalog=full.estimated - full.reserved - bare.estimated,
        tools=full.reserved,
        hint=hint(spec.skills, TASK),
    )


def _text_in(root: str) -> int:
    texts = (read(root, file.path) for file in files_of(root) if file.path.lower() != "skill.md")
    return sum(text_tokens(data.decode("utf-8", "replace")) for data in texts if b"\0" not in data[:8192])


def report(figures: Figures) -> str:
    """Return the figures as Markdown."""
    whole, count = sum(figures.bodies), len(figures.bodies)
    usual = round(median(figures.bodies))
    one = figures.layered + usual

    def saved(tokens: int, of: int) -> str:
        return f"{100 * (1 - tokens / of):.1f} %"

    rows = [
        ["all instructions in the prompt", whole, ""],
        ["all instructions and resources", whole + figures.resources, ""],
        ["catalog", figures.catalog, saved(figures.catalog, whole)],
        ["catalog and the skill tools", figures.layered, saved(figures.layered, whole)],
        ["catalog, skill tools and one loaded skill (median)", one, saved(one, whole)],
    ]
    head = (
        f"The collection has {count} skills. In the catalog, each skill takes up {figures.catalog / count:.0f} tokens"
        f" on average.\nA loaded skill takes up {usual} tokens (median)."
    )
    fits = f"For the task “{TASK}”, the model sees this hint:\n“{figures.hint}”"
    return "\n\n".join((head, table(["in each prompt", "tokens", "saved"], rows), fits))


def main() -> None:
    """Run the command line. The exit code is 1 if the catalog saves fewer tokens than required."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=COLLECTION)
    parser.add_argument("--write", action="store_true", help=f"write the figures to {DOC.name}")
    given = parser.parse_args()
    figures = asyncio.run(measured(given.folder))
    section = report(figures)
    sys.stdout.write(section + "\n")
    if given.write:
        put(DOC, MARKS, section)
    sys.exit(0 if figures.saving >= WANTED else 1)


if __name__ == "__main__":
    main()
