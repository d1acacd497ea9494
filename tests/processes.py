"""Looking at processes that may end meanwhile."""

import psutil


def command_of(process: psutil.Process) -> list[str]:
    """Its command line; empty when it has ended, or is not ours to look at."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []
