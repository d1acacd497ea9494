"""Histories of runs as files beside your tests, which show that a new release can continue the runs."""

import asyncio
from pathlib import Path

from loom.client import LoomClient
from loom.composition.replay import histories_in, histories_of, replay
from loom.workflows.payload_converter import data_converter


async def save_histories(client: LoomClient, run_id: str, folder: Path) -> list[Path]:
    """Write the history of each execution of a run to a file, and return the files.

    A history contains everything that the run has read and said. Raises RunNotFoundError if there is no such run.
    """
    files = []
    async for history in histories_of(client.temporal, run_id):
        file = folder / f"{run_id.replace('/', '_')}.{history.run_id[:8]}.json"
        await asyncio.to_thread(_write, file, history.to_json())
        files.append(file)
    return files


def _write(file: Path, content: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


async def assert_replays(*files: Path) -> None:
    """Fail unless this code can continue the runs in these files, or in the JSON files of these folders."""
    found = [each for file in files for each in (sorted(file.glob("*.json")) if file.is_dir() else [file])]
    assert found, f"no histories in {', '.join(map(str, files))}"
    outcomes = [each async for each in replay(histories_in(found), data_converter())]
    failed = [f"  {each.run_id} ({each.workflow}): {each.error}" for each in outcomes if each.error is not None]
    if failed:
        raise AssertionError("\n".join((f"{len(failed)} of {len(outcomes)} histories can't be replayed:", *failed)))
