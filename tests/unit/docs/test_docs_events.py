"""The program in docs/events.md runs, and prints what it says; its handlers: workflows/test_task_handlers."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "events.md").read_text()


def test_the_program_prints_what_the_page_says() -> None:
    program, _handlers = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (said,) = re.findall(r"^The program prints `(.*)`\.$", PAGE, re.MULTILINE)
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == said
