"""Run the `loom` command: `loom`, or `python -m loom`."""

import sys
from typing import NoReturn

from loom.extras import WORKER, explained


def main() -> NoReturn:
    """Run the command. Without the packages of a worker, say on standard error what to install, and exit with 2."""
    try:
        from loom.cli.main import main as run  # noqa: PLC0415 - its packages come with a worker
    except ModuleNotFoundError as error:
        if (missing := explained(error, "the `loom` command", WORKER)) is None:
            raise
        sys.stderr.write(f"loom: {missing}\n")
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
