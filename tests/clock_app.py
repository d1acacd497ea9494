"""An app whose worker's clock jumps by `JUMP` seconds as soon as the file `jump` is in the worker's folder."""

import os
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import time_machine

from loom import LoomApp

app = LoomApp()


def jump() -> None:
    """Wait for the file, and set the clock of this process. Monotonic clocks go on as they do on a real machine."""
    flag = Path("jump")
    while not flag.exists():
        time.sleep(0.05)
    there = datetime.now(UTC) + timedelta(seconds=float(os.environ["JUMP"]))
    time_machine.travel(there, tick=True).start()
    flag.rename("jumped")


threading.Thread(target=jump, daemon=True).start()
