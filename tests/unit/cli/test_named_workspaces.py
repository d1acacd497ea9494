"""The options that say what a run works on, and what they become in its request."""

import io
import sys
from base64 import b64encode
from pathlib import Path

import pytest

from loom.cli.arguments import named_workspace
from loom.domain.core.errors import BadRequest
from loom.domain.core.media import MOST_BYTES


def test_an_archive_is_read_here_whatever_its_name_is(tmp_path: Path) -> None:
    (tmp_path / "app.bin").write_bytes(b"packed")

    named = named_workspace(None, None, None, archive=str(tmp_path / "app.bin"))

    assert named == {"archive": {"data": b64encode(b"packed").decode(), "name": "app.bin"}}


def test_an_archive_can_come_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"packed")))

    assert named_workspace(None, None, None, archive="-") == {"archive": {"data": b64encode(b"packed").decode()}}


@pytest.mark.parametrize(("content", "said"), [(b"", "is empty"), (bytes(MOST_BYTES + 1), "is larger than 20,000,000")])
def test_an_archive_that_is_empty_or_too_large_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "app.zip").write_bytes(content)

    with pytest.raises(BadRequest, match=f"--archive: .*app.zip {said}"):
        named_workspace(None, None, None, archive=str(tmp_path / "app.zip"))


def test_a_repository_has_only_the_options_that_are_given() -> None:
    assert named_workspace(None, "https://git.example/app", None, "fix") == {
        "git": "https://git.example/app",
        "push": "fix",
    }
    assert named_workspace("src", None, None) == "src"
