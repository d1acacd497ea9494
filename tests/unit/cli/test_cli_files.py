"""What `loom files` reads, sends and prints, without a server."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from loom.cli.commands import files
from loom.domain.core.errors import BadRequest
from loom.domain.core.run_files import FileEntry
from loom.run_files import FileContent, FileList, WrittenFile


class OneRun:
    """A client for a run with a file whose name has two lines."""

    def __init__(self) -> None:
        self.files = self
        self.written: list[str] = []

    async def list(self, *_: str, by: str) -> FileList:
        del by
        entry = FileEntry(path="two\nlines\x1b[2J.txt", kind="file", bytes=1)
        return FileList(entries=(entry,), left_out=0, note="")

    async def read(self, *_: str, by: str) -> FileContent:
        del by
        return FileContent(data=b"text", is_archive=False, left_out=0, note="")

    async def write(self, run_id: str, path: str, content: bytes, *, by: str) -> WrittenFile:
        del run_id, by
        self.written.append(path)
        return WrittenFile(path=path, bytes=len(content), is_new=True, note="")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> OneRun:
    """The run of each command."""
    one = OneRun()

    def with_run(name: str, work: Callable[[Any, str], Awaitable[Any]]) -> Any:
        async def done() -> Any:
            return await work(one, name)

        return asyncio.run(done())

    monkeypatch.setattr(files, "with_run", with_run)
    return one


@pytest.mark.usefixtures("run")
def test_each_file_is_one_line_and_nothing_in_its_name_controls_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    files.list_files("r")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith(r"two\nlines\x1b[2J.txt")


def test_a_path_with_a_slash_at_its_end_is_a_folder_for_the_file(run: OneRun, tmp_path: Path) -> None:
    (file := tmp_path / "a.txt").write_text("a")
    for path in (None, "in/", "in/b.txt"):
        files.put("r", str(file), path)
    assert run.written == ["a.txt", "in/a.txt", "in/b.txt"]
    with pytest.raises(BadRequest, match="name the file that standard input goes into"):
        files.put("r", "-", "in/")


def test_a_file_without_an_end_is_refused(run: OneRun, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/zero").open() as endless:
        monkeypatch.setattr(sys, "stdin", endless)
        for file in ("/dev/zero", "-"):
            with pytest.raises(BadRequest, match="has more than 20,000,000 bytes"):
                files.put("r", file, "z.bin")
    assert run.written == []


@pytest.mark.usefixtures("run")
def test_an_output_that_is_full_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with suppress(OSError), Path("/dev/full").open("w") as full:  # closing it fails, too
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(BadRequest, match="the output cannot be written: No space left on device"):
            files.get("r", "a.txt")
