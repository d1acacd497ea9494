"""The documentation site has every page, in the table of contents of `zensical.toml`."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


def pages_in(entries: list[dict[str, Any]]) -> Iterator[str]:
    for entry in entries:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else pages_in(value)


def test_the_table_of_contents_has_every_page_once() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]

    assert sorted(pages_in(nav)) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
