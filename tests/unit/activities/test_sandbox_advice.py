"""What a person is told to set so that a project's own Python works in the sandbox."""

from pathlib import Path

import pytest

from loom.activities.adapters.sandbox.project_environments import UnseenPython


def python_in(prefix: Path) -> Path:
    (prefix / "lib/python3.12").mkdir(parents=True)
    (prefix / "bin").mkdir()
    return prefix / "bin"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = (tmp_path / "home").resolve()
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.mark.parametrize("prefix", ["..", ".", ".local", ".local/share", ".ssh"])
def test_a_prefix_that_holds_more_of_a_home_than_a_python_is_never_to_be_opened(home: Path, prefix: str) -> None:
    advice = UnseenPython(".venv", python_in(home / prefix)).advice()
    assert advice == "create .venv again with `/usr/bin/python3 -m venv`"


def test_a_python_that_is_reached_through_such_a_prefix_is_neither(home: Path) -> None:
    installed = python_in(home / ".local/share/uv/python/cpython-3.12.1")
    (home / ".local/bin").symlink_to(installed)
    assert "LOOM_SANDBOX_READABLE" not in UnseenPython(".venv", home / ".local/bin").advice()


@pytest.mark.parametrize("prefix", [".pyenv/versions/3.12.1", ".local/share/uv/python/cpython-3.12.1", "miniconda3"])
def test_an_installation_in_a_home_is_to_be_opened(home: Path, prefix: str) -> None:
    advice = UnseenPython(".venv", python_in(home / prefix)).advice()
    assert advice == f"set LOOM_SANDBOX_READABLE={home / prefix}"
