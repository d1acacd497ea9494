"""A project's own virtual environment in the sandbox, whose Python is somewhere that commands don't see."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from loom.activities.adapters.sandbox.bubblewrap import find_program
from loom.activities.adapters.sandbox.namespaces import Bubblewrap
from loom.activities.toolbox.built_in.shell import Finished
from loom.composition.settings import Settings
from loom.doctor_checks import sandbox as checked


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return (tmp_path / "project").resolve()


def installation(folder: Path) -> Path:
    """A Python in a home directory, as far as an environment is concerned."""
    (folder / "bin").mkdir(parents=True)
    (folder / "lib/python3.12").mkdir(parents=True)
    (folder / "bin/python3").write_text("#!/bin/sh\necho Python 3.12\n")
    (folder / "bin/python3").chmod(0o755)
    return folder


def linked(environment: Path, base: Path) -> None:
    """Create an environment as `python -m venv`, pyenv's Python and uv do."""
    (environment / "bin").mkdir(parents=True)
    (environment / "pyvenv.cfg").write_text(f"home = {base}/bin\nversion = 3.12\n")
    (environment / "bin/python").symlink_to(base / "bin/python3")


def copied(environment: Path, base: Path) -> None:
    """Create one as `python -m venv --copies` does: the program is here, and what it loads is elsewhere."""
    linked(environment, base)
    (environment / "bin/python").unlink()
    (environment / "bin/python").write_text(f"#!/bin/sh\nexec {base}/bin/python3\n")
    (environment / "bin/python").chmod(0o755)


def linked_through_a_link(environment: Path, base: Path) -> None:
    """Create one as uv does for a minor version, which is a link to the installed patch."""
    (base.parent / "cpython-3.12").symlink_to(base.name)
    linked(environment, base.parent / "cpython-3.12")


def elsewhere(environment: Path, base: Path) -> None:
    """Link to an environment of conda's, which is an installation of its own."""
    (base / "bin/python").symlink_to("python3")
    environment.parent.mkdir(exist_ok=True)
    environment.symlink_to(base)


async def ran(project: Path, command: str, *opened: Path) -> Finished:
    sandbox = Bubblewrap(find_program() or "", opened=opened)
    return await sandbox.run(
        ["bash", "-c", command], workspace=project, timeout=20, max_output=9999, on_output=lambda _text: None
    )


async def advised(project: Path) -> str:
    """What `loom doctor` says about the environments of a project."""
    return str((await checked(Settings(workspace=project))).get("warning", ""))


@pytest.mark.parametrize("make", [linked, copied, linked_through_a_link, elsewhere])
async def test_what_the_doctor_says_makes_an_environment_work(
    project: Path, make: Callable[[Path, Path], None]
) -> None:
    make(project / ".venv", installation(project.parent / "home/pythons/cpython-3.12.1"))

    failed = await ran(project, ".venv/bin/python")
    assert failed.exit_code == 127
    assert "the programs of .venv are in " in failed.limit
    assert "`loom doctor`" in failed.limit

    _, is_set, folder = (await advised(project)).partition("set LOOM_SANDBOX_READABLE=")
    assert is_set
    works = await ran(project, ".venv/bin/python", *Settings(sandbox_readable=(Path(folder),)).sandbox_readable)
    assert (works.exit_code, works.output, works.limit) == (0, "Python 3.12\n", "")


async def test_an_environment_below_is_named_by_what_the_command_printed(project: Path) -> None:
    linked(project / "services/api/.venv", installation(project.parent / "python"))
    assert "the programs of services/api/.venv are in" in (await ran(project, "services/api/.venv/bin/python")).limit


async def test_the_doctor_finds_environments_of_any_name_and_those_one_folder_below(project: Path) -> None:
    for name in ("py312", "api/venv"):
        linked(project / name, project.parent / "python")
    found = [each.environment for each in Bubblewrap(find_program() or "").unseen_pythons(project)]
    assert found == ["api/venv", "py312"]


async def test_an_environment_of_the_system_s_python_works(project: Path) -> None:
    worked = await ran(project, "/usr/bin/python3 -m venv --without-pip .venv && .venv/bin/python -c 'print(1)'")
    assert (worked.output, worked.limit) == ("1\n", "")
    assert (await ran(project, ".venv/bin/python -c 'import absent'")).limit == ""
    assert await advised(project) == ""


@pytest.mark.parametrize("is_link", [True, False])
async def test_an_environment_that_an_agent_has_made_opens_nothing(project: Path, is_link: bool) -> None:
    secrets = project.parent / "home/.ssh"
    (secrets / "bin").mkdir(parents=True)
    (secrets / "bin/python").write_text("a private key")
    if is_link:
        (project / ".venv").symlink_to(secrets)
    else:
        linked(project / ".venv", secrets)
    (project / "venv").mkdir()
    os.mkfifo(project / "venv/pyvenv.cfg")

    tried = await ran(project, f"cat .venv/bin/python {secrets}/bin/python")
    assert "a private key" not in tried.output
    assert "LOOM_SANDBOX_READABLE=" not in tried.limit + await advised(project)
