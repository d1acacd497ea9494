"""CI fails if a program that tests need is missing. On a developer's machine, such tests are skipped."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[3] / ".ci"


@pytest.mark.parametrize("name", ["chromium", "kubectl", "promtool"])
def test_a_program_that_cannot_be_had_is_an_error_in_ci(name: str, tmp_path: Path) -> None:
    dirname, bash = shutil.which("dirname"), shutil.which("bash")
    assert dirname is not None
    assert bash is not None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "dirname").symlink_to(dirname)
    (tmp_path / ".ci").mkdir()
    script = shutil.copy(SCRIPTS / name, tmp_path / ".ci")
    env = {"PATH": str(tmp_path / "bin"), "CI": "true"}
    ran = subprocess.run([bash, script], env=env, capture_output=True, text=True, check=False)
    assert (ran.returncode, f"no {name}" in ran.stderr) == (1, True)


def test_the_ci_run_says_that_it_is_one() -> None:
    assert "\nexport CI=true" in (SCRIPTS / "run").read_text(encoding="utf-8")
