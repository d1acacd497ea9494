"""Looking at processes that may end meanwhile."""

import psutil


def command_of(process: psutil.Process) -> list[str]:
    """Its command line; empty when it has ended, or is not ours to look at."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def stands_still(process: psutil.Process) -> bool:
    """Whether it is stopped, or has ended before it could be."""
    try:
        return process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
