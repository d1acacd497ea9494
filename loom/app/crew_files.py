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

from loom.app.document_files import documents_in, read_document, read_each
from loom.app.forms.crew import read_crew
from loom.domain.crews.crew import Crew

FOLDER: Final = "crews"
ENDINGS: Final = (".yaml", ".yml", ".toml", ".json")


def crew_files(folders: Iterable[Path]) -> tuple[Path, ...]:
    """The crew files in these folders, by name. A missing folder has none."""
    return documents_in(folders, ENDINGS)


def read_crews(paths: Iterable[Path]) -> tuple[Crew, ...]:
    """The crews in these files; raises BadRequest with everything that is wrong with any of them."""
    return read_each(paths, read_crew_file, field="crews")


def read_crew_file(path: Path) -> Crew:
    """The crew in a file; raises BadRequest with everything that is wrong with it, one line each."""
    return read_crew(read_document(path), name=path.stem, origin=str(path))
