"""The table of all metrics in docs/metrics.md: `python -m bench.metrics_table` writes it."""

from pathlib import Path
from typing import Final

from bench.report import put, table
from loom.domain.core.metrics import ALL

DOC: Final = Path(__file__).parent.parent / "docs" / "metrics.md"
MARKS: Final = ("<!-- metrics: begin -->", "<!-- metrics: end -->")


def generated() -> str:
    """Return the table."""
    rows = [[f"`{each.name}`", each.kind, ", ".join(f"`{name}`" for name in each.labels), each.help] for each in ALL]
    return table(["metric", "kind", "labels", "meaning"], rows)


if __name__ == "__main__":
    put(DOC, MARKS, generated())
