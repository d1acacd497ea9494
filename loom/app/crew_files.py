"""Read crew files. Each YAML, TOML or JSON file in a `crews` folder defines one crew with the fields of `CrewForm`.

# crews/research.yaml
mode: sequential
members:
  - {name: searcher, task: Find what is known.}
  - {name: writer, task: Write it up in one page.}
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from loom.app.document_files import documents_in, read_document, read_each
from loom.app.forms.crew import read_crew
from loom.domain.crews.crew import Crew

FOLDER: Final = "crews"
ENDINGS: Final = (".yaml", ".yml", ".toml", ".json")


def crew_files(folders: Iterable[Path]) -> tuple[Path, ...]:
    """Return the crew files in these folders, sorted by name. A missing folder counts as empty."""
    return documents_in(folders, ENDINGS)


def read_crews(paths: Iterable[Path]) -> tuple[Crew, ...]:
    """Return the crews that these files define. Raises BadRequest, which lists the errors in all files."""
    return read_each(paths, read_crew_file, field="crews")


def read_crew_file(path: Path) -> Crew:
    """Return the crew that the file defines. Raises BadRequest, which lists all errors in the file, one per line."""
    return read_crew(read_document(path), name=path.stem, origin=str(path))
