"""The list of releases that `make upgrade` starts from."""

import re
import subprocess
import tomllib

from tests.acceptance.upgrade import CHECKOUT, RELEASES


def test_each_release_of_the_changelog_is_listed_with_the_commit_that_has_its_version() -> None:
    released = re.findall(r"^## (\d[\d.]*)$", (CHECKOUT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sorted(released) == sorted(RELEASES)
    for version, commit in RELEASES.items():
        shown = subprocess.run(
            ["git", "-C", str(CHECKOUT), "show", f"{commit}:pyproject.toml"], check=True, capture_output=True, text=True
        )
        assert tomllib.loads(shown.stdout)["project"]["version"] == version
