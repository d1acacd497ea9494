"""What a worker's Prometheus endpoint says."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.request import urlopen

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One line: a value with its labels."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Scrape:
    """All lines of one answer."""

    samples: tuple[Sample, ...]

    def total(self, name: str, **labels: str) -> float:
        """The sum of the samples with this name and these labels."""
        return sum(each.value for each in self.of(name) if labels.items() <= each.labels.items())

    def by(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """The sums of the samples with this name, by labels."""
        sums: dict[tuple[str, ...], float] = {}
        for each in self.of(name):
            key = tuple(each.labels[label] for label in labels)
            sums[key] = sums.get(key, 0.0) + each.value
        return sums

    def of(self, name: str) -> list[Sample]:
        """The samples with this name."""
        return [each for each in self.samples if each.name == name]


def scraped(port: int) -> Scrape:
    """Ask the endpoint."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        found = [_SAMPLE.match(line) for line in answer.read().decode().splitlines()]
    return Scrape(
        tuple(
            Sample(name=match[1], labels=dict(_LABEL.findall(match[2] or "")), value=float(match[3]))
            for match in found
            if match is not None
        )
    )
