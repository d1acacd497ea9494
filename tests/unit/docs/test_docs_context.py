"""The program in docs/context.md runs, and prints what the page says."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "context.md"


def test_the_example_prints_what_the_page_says() -> None:
    program, output = (re.search(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL) for kind in ("python", "text"))
    assert program is not None
    assert output is not None

    ran = subprocess.run(
        [sys.executable, "-c", program[1]], cwd=PAGE.parents[1], check=True, capture_output=True, text=True
    )

    assert ran.stdout == output[1]
