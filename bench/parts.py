"""Measure the parts of a page of figures, together or one by one, and write the page."""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.report import machine, section, table
from bench.stage import Stage, stage
from bench.targets import Section, Target, target_table

Part = Callable[[Stage], Awaitable[Section]]


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of figures."""

    file: Path
    begin: str
    """The title, and the text before the table of targets."""
    end: str = ""
    """The text after the parts."""
    module: str
    """The module that measures the parts: `python -m MODULE PART`."""

    def text(self, names: Sequence[str], folder: Path) -> str:
        """Return the page with the sections that the folder has."""
        found = [_found(folder, name) for name in names]
        targets = [Target(**target) for each in found for target in each["targets"]]
        sections = [machine(), target_table(targets), *(each["text"] for each in found), self.end]
        return "\n\n".join(filter(None, [self.begin, *sections, self._times(names, found)])) + "\n"

    def write(self, text: str, names: Iterable[str], folder: Path) -> None:
        """Replace the page and its images."""
        self.file.write_text(text, encoding="utf-8")
        for name in names:
            for image, drawn in _found(folder, name)["images"].items():
                (self.file.parent / "images" / image).write_text(drawn, encoding="utf-8")

    def _times(self, names: Sequence[str], found: Sequence[Mapping[str, Any]]) -> str:
        rows = [[name, each["at"], each["load"]] for name, each in zip(names, found, strict=True)]
        text = (
            "*Load* is the average number of processes that wanted to run in the minute before. If it was high, compare"
            " only ratios: other work has made all times longer."
        )
        header = [f"part of `python -m {self.module}`", "when", "load"]
        return section("When the parts were measured", text, table(header, rows))


def command_line(description: str, page: Page, parts: Callable[[int], Mapping[str, Part]], *, rounds: int) -> None:
    """Measure the parts that the arguments name, and print the page."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="parts to measure; all of them by default")
    parser.add_argument("--rounds", type=int, default=rounds, help="number of interleaved rounds for the time per turn")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folder that keeps the figures of each part")
    parser.add_argument("--write", action="store_true", help=f"replace {page.file.name}")
    given = parser.parse_args()
    every = parts(given.rounds)
    if unknown := [name for name in given.parts if name not in every]:
        parser.error(f"unknown part {unknown[0]}: the parts are {', '.join(every)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the processes that were started
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        asyncio.run(_measure({name: every[name] for name in given.parts or every}, folder))
        missing = [name for name in every if not _kept(folder, name).exists()]
        text = page.text([name for name in every if name not in missing], folder)
        if given.write and not missing:
            page.write(text, every, folder)
    sys.stdout.write(text)
    if given.write and missing:
        parser.error(f"{page.file.name} needs all parts: measure {', '.join(missing)} as well")


async def _measure(chosen: Mapping[str, Part], folder: Path) -> None:
    """Measure these parts, and keep the section of each in the folder."""
    with stage() as ready:
        for name, part in chosen.items():
            at, load = datetime.now(UTC), os.getloadavg()[0]
            found = await part(ready)
            kept: dict[str, Any] = {"at": f"{at:%Y-%m-%d %H:%M} UTC", "load": f"{load:.1f}", "text": found.text}
            kept["images"] = found.images
            kept["targets"] = [asdict(target) for target in found.targets]
            _kept(folder, name).write_text(json.dumps(kept, ensure_ascii=False, indent=1), encoding="utf-8")


def _found(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_kept(folder, name).read_text(encoding="utf-8"))
    return found


def _kept(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"
