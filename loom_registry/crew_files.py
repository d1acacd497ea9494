"""Crews in files: one in each YAML, TOML or JSON file of a folder `crews`, with the fields of `crew_form`.

# crews/research.yaml
mode: sequential
members:
  - {name: searcher, task: Find what is known.}
  - {name: writer, task: Write it up in one page.}
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from loom_domain.crews import Crew
from loom_domain.errors import BadRequest
from loom_registry.agent_files import read_document
from loom_registry.crew_form import read_crew

FOLDER: Final = "crews"
ENDINGS: Final = (".yaml", ".yml", ".toml", ".json")


def crew_files(folders: Iterable[Path]) -> tuple[Path, ...]:
    """The crew files in these folders, by name; a folder that is not there has none."""
    found = (path for folder in folders if folder.is_dir() for path in sorted(folder.iterdir()))
    return tuple(dict.fromkeys(path.resolve() for path in found if path.suffix.lower() in ENDINGS and path.is_file()))


def read_crews(paths: Iterable[Path]) -> tuple[Crew, ...]:
    """The crews of these files; raises BadRequest with everything that is wrong with any of them."""
    crews: list[Crew] = []
    problems: list[str] = []
    for path in paths:
        try:
            crews.append(read_crew_file(path))
        except BadRequest as error:
            problems.append(error.message)
    if problems:
        raise BadRequest("\n".join(problems), field="crews")
    return tuple(crews)


def read_crew_file(path: Path) -> Crew:
    """The crew of a file; raises BadRequest with all that is wrong with it, a line each."""
    return read_crew(read_document(path), name=path.stem, origin=str(path))
