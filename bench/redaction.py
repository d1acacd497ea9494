"""Measure how many secrets are found, and how long the search takes: `python -m bench.redaction`."""

import sys
from collections import Counter
from collections.abc import Callable
from statistics import median
from time import perf_counter

from bench.report import table
from loom.activities.adapters.redaction.mask import SecretMask
from tests.corpora.secrets.decoys import decoys
from tests.corpora.secrets.making import ALNUM, Maker
from tests.corpora.secrets.ordinary import ordinary_code
from tests.corpora.secrets.samples import leaks, samples

SEEDS = range(1, 6)
SIZES = {"1 KB": 1_000, "10 KB": 10_000, "100 KB": 100_000, "1 MB": 1_000_000}


def redaction() -> str:
    """Return the section as Markdown."""
    maker = Maker(1)
    mask = SecretMask([maker.of(ALNUM, 40) for _ in range(5)])
    return "\n\n".join(("### Secrets", _found(mask), "Speed on source code, with five known secrets:", _speed(mask)))


def _found(mask: SecretMask) -> str:
    corpus = [sample for seed in SEEDS for sample in samples(seed)]
    missed = Counter(sample.kind for sample in corpus if leaks(sample, mask.redact(sample.text)))
    harmless = [decoy for seed in SEEDS for decoy in decoys(seed)]
    touched = sum(mask.redact(decoy) != decoy for decoy in harmless)
    code = ordinary_code(3_000_000)
    kinds = len({sample.kind for sample in corpus})
    worst = ", ".join(f"{kind} {count}" for kind, count in missed.most_common(3)) or "none"
    return table(
        ["measured on", "number", "result"],
        [
            [f"secrets of {kinds} kinds", len(corpus), f"{100 - 100 * missed.total() / len(corpus):.2f} % found"],
            ["missed secrets (most frequent kinds)", missed.total(), worst],
            ["decoys", len(harmless), f"{touched} changed"],
            ["ordinary source code", f"{len(code) / 1e6:.1f} MB", f"{len(mask.spans(code))} places changed"],
        ],
    )


def _speed(mask: SecretMask) -> str:
    code = ordinary_code(1_000_000)
    rows: list[list[str]] = []
    for name, size in SIZES.items():
        pieces = [code[at : at + size] for at in range(0, min(len(code), 40 * size), size)]
        seconds = median(_seconds(mask.redact, pieces) for _ in range(7)) / sum(map(len, pieces))
        rows.append([name, f"{seconds * 1e9:.0f} µs", f"{1 / seconds / 1e6:.0f} MB/s"])
    return table(["input size", "time per KB", "speed"], rows)


def _seconds(redact: Callable[[str], str], pieces: list[str]) -> float:
    begun = perf_counter()
    for piece in pieces:
        redact(piece)
    return perf_counter() - begun


if __name__ == "__main__":
    sys.stdout.write(redaction() + "\n")
