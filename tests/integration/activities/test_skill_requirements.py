"""What a skill needs, in the words of its author, against what commands have."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.activities.adapters.sandbox.bubblewrap import find_sandbox
from loom.activities.adapters.skills.requirements import Required, declared, listed, noting, required_by, stated, unmet
from loom.activities.ports import ToolContext, ToolOutput
from loom.activities.toolbox.built_in.python import python_tool
from loom.activities.toolbox.built_in.shell import KEPT
from loom.composition.load_settings import read_settings
from loom.domain.core.errors import BadRequest, ToolUnavailableError
from tests.sandboxes import SANDBOX, WHY_NOT
from tests.skills import write_skill

INLINE = """\
# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "acme-web<3",
#     "acme-screen",
# ]
# ///
import acme_web
"""


@pytest.mark.parametrize(
    ("text", "programs", "python", "network"),
    [
        ("Requires git, docker, jq, and access to the internet", [("git",), ("docker",), ("jq",)], "", True),
        ("Requires Python 3.14+ and uv", [("uv",)], ">=3.14", False),
        ("Needs ffmpeg or avconv.", [("ffmpeg", "avconv")], "", False),
        ("Requires the `gh` CLI (authenticated) and Python 3", [("gh",)], "~=3.0", False),
        ("Works everywhere; requires python >= 3.12. Needs tesseract.", [("tesseract",)], ">=3.12", False),
        ("Designed for Claude Code (or similar products)", [], "", False),
        ("Requires careful thought and the approval of a person", [], "", False),
        ("Does not require internet", [], "", False),
        ("", [], "", False),
    ],
)
def test_only_what_the_text_certainly_requires_is_read(
    text: str, programs: list[tuple[str, ...]], python: str, network: bool
) -> None:
    found = stated(text)
    assert (list(found.programs), str(found.python), found.network) == (programs, python, network)


@given(st.text(max_size=500))
def test_any_text_can_be_read_and_nothing_is_made_up(text: str) -> None:
    assert all(name in text for names in stated(text).programs for name in names)
    assert declared(f"# /// script\n# {text}\n# ///\n").programs == ()
    assert all(package.name in text for package in listed(text).packages)


def test_a_script_declares_its_python_and_its_packages_inline() -> None:
    found = declared(INLINE)
    assert (str(found.python), [str(each) for each in found.packages]) == (">=3.11", ["acme-web<3", "acme-screen"])
    assert declared("import acme_web\n") == Required()


def test_a_list_of_requirements_may_have_options_and_comments() -> None:
    found = listed("# for the report\n-r more.txt\npypdf>=5 # the reader\n\nhttps://127.0.0.1/x.whl\n")
    assert [str(each) for each in found.packages] == ["pypdf>=5"]


async def test_the_model_is_told_what_is_missing_and_nothing_else(tmp_path: Path) -> None:
    assert SANDBOX is not None, WHY_NOT
    write_skill(
        tmp_path,
        "report",
        more="compatibility: Requires bash, no-such-program and Python 3.2+\n",
        scripts__build_dot_py=INLINE,
        requirements_dot_txt="pip\nnever-written-package==1; python_version < '3'\n",
    )
    assert await noting(SANDBOX)(str(tmp_path / "report"), tmp_path) == (
        "(This skill requires what commands don't have here: the program no-such-program; the Python package "
        "acme-web<3; the Python package acme-screen. Where a step depends on it, find another way, or say what is "
        "missing.)"
    )


async def test_nothing_is_run_for_a_skill_that_requires_nothing(tmp_path: Path) -> None:
    write_skill(tmp_path, "plain", scripts__a_dot_py="print(1)\n")
    assert required_by(str(tmp_path / "plain")).is_empty
    assert await noting(None)(str(tmp_path / "plain"), tmp_path) == ""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with a package and a program."""
    place = tmp_path_factory.mktemp("prepared").resolve() / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    packages = next(place.glob("lib/python3*/site-packages"))
    (packages / "acme_pdf.py").write_text("pages = 7\n")
    (packages / "acme_pdf-2.0.dist-info").mkdir()
    (packages / "acme_pdf-2.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: acme-pdf\nVersion: 2.0\n"
    )
    program = place / "bin" / "acme"
    program.write_text("#!/bin/sh\necho acme $VIRTUAL_ENV\n")
    program.chmod(0o755)
    return place


async def test_commands_programs_and_requirements_see_the_prepared_environment(tmp_path: Path, prepared: Path) -> None:
    sandbox, why_not = find_sandbox("on", environment=prepared)
    assert sandbox is not None, why_not
    finished = await sandbox.run(
        ["bash", "-c", "acme; python -c 'import acme_pdf; print(acme_pdf.pages)'; touch $VIRTUAL_ENV/x"],
        workspace=tmp_path.resolve(),
        timeout=20,
        max_output=KEPT,
        on_output=lambda _text: None,
    )
    assert finished.output.splitlines()[:2] == [f"acme {prepared}", "7"]
    assert "Read-only file system" in finished.output

    tool = python_tool(sandbox, 20, "")
    context = ToolContext(workspace=tmp_path.resolve(), run_id="r", call_id="c", idempotency_key="k", timeout=30)
    code = "import acme_pdf, sys\nprint(acme_pdf.pages, sys.prefix)"
    came = await tool.run(tool.parse({"code": code}), context)
    assert isinstance(came, ToolOutput)
    assert came.text == f"7 {prepared}"

    required = listed("acme-pdf>=2\nacme_pdf<2\n")
    assert await unmet(required, sandbox, tmp_path.resolve()) == ("the Python package acme_pdf<2 (commands have 2.0)",)


async def test_an_environment_that_an_agent_could_change_is_refused(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox, _ = find_sandbox("on", environment=prepared)
    assert sandbox is not None
    with pytest.raises(ToolUnavailableError, match="is in the workspace"):
        await sandbox.run(["true"], workspace=prepared.parent, timeout=5, max_output=KEPT, on_output=lambda _text: None)
    link = tmp_path / "link"
    link.symlink_to(prepared)
    linked, _ = find_sandbox("on", environment=link)
    assert linked is not None
    with pytest.raises(ToolUnavailableError, match="is in the workspace"):
        await linked.run(["true"], workspace=prepared.parent, timeout=5, max_output=KEPT, on_output=lambda _text: None)
    monkeypatch.setenv("LOOM_SANDBOX_ENVIRONMENT", str(prepared))
    monkeypatch.setenv("LOOM_WORKSPACE", str(prepared.parent))
    with pytest.raises(BadRequest, match="could change its programs: create it outside"):
        read_settings()


def test_a_folder_that_is_no_environment_is_refused_with_the_way_to_make_one(tmp_path: Path, prepared: Path) -> None:
    with pytest.raises(BadRequest, match="create one with `python3 -m venv"):
        find_sandbox("on", environment=tmp_path)
    moved = tmp_path / "moved"
    shutil.copytree(prepared, moved, symlinks=True)
    (moved / "pyvenv.cfg").write_text("home = /nowhere/bin\n")
    with pytest.raises(BadRequest, match="was created from /nowhere, which is not a Python installation"):
        find_sandbox("on", environment=moved)
