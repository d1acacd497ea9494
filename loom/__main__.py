"""Run the `loom` command: `python -m loom`."""

from loom.cli.main import main

if __name__ == "__main__":
    main()
