"""The change that an ask shows is that of a file in the run's own workspace, or none."""

from pathlib import Path

import pytest

from loom.file_changes import change_of

WRITE = {"path": "notes.txt", "content": "mine"}


def test_a_call_whose_workspace_is_unknown_shows_nothing_of_the_folder_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").write_text("secret")
    monkeypatch.chdir(tmp_path)
    assert change_of("write_file", WRITE, "") is None
    assert "-secret" in (change_of("write_file", WRITE, str(tmp_path)) or "")
