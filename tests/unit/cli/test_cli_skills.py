"""`loom skills`: what there is and why the rest is not, what a skill may do, checking one, and taking one in."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from loom.exit_codes import USAGE
from tests.commands import Commands, commands_in
from tests.skills import write_broken_ones, write_release_notes, write_skill

APP = "from loom import LoomApp\napp = LoomApp()\napp.register_skill('{}')\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture
def loom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[Commands]:
    assert home.is_dir()
    here = tmp_path / "here"
    here.mkdir()
    with commands_in(here, monkeypatch) as commands:
        yield commands


def test_the_list_has_every_skill_and_the_reason_why_one_is_left_out(loom: Commands, home: Path) -> None:
    write_release_notes(home / ".agents/skills")
    write_broken_ones(home / ".claude/skills")
    write_skill(loom.folder / ".agents/skills", "theirs")
    told = json.loads(loom("skills", "list", "--json").out)
    assert [(skill["name"], skill["source"]) for skill in told["skills"]] == [("release-notes", "user")]
    assert len(told["skipped"]) == 7
    assert told["skipped"][0]["path"] == str(loom.folder / ".agents/skills")
    ran = loom("skills", "list")
    assert "release-notes" in ran.out
    assert f"add {loom.folder} to LOOM_TRUSTED_FOLDERS" in ran.err
    assert "no-description (user): there is no description" in ran.err


def test_a_trusted_folder_is_named_in_the_environment(loom: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    write_skill(loom.folder / ".agents/skills", "theirs")
    monkeypatch.setenv("LOOM_TRUSTED_FOLDERS", str(loom.folder.parent))
    assert json.loads(loom("skills", "list", "--json").out)["skills"][0]["source"] == "project"


def test_trust_is_not_taken_from_a_file_that_an_agent_could_write(loom: Commands) -> None:
    (loom.folder / ".env").write_text("LOOM_TRUSTED_FOLDERS=/\n")
    ran = loom("skills", "list")
    assert ran.code == USAGE
    assert "LOOM_TRUSTED_FOLDERS is not read from .env" in ran.err


def test_a_skill_is_shown_with_what_it_may_do(loom: Commands, home: Path) -> None:
    folder = write_release_notes(home / ".agents/skills")
    text = (folder / "SKILL.md").read_text().replace("---\n\n", "allowed-tools: Bash(git *)\nlicense: MIT\n---\n\n")
    (folder / "SKILL.md").write_text(text)
    told = json.loads(loom("skills", "show", "release-notes", "--json").out)
    assert (told["state"], told["license"], told["files"]) == ("ready", "MIT", 4)
    assert told["scripts"] == ["scripts/count.py", "scripts/shout.py"]
    assert told["tools"] == {"skill__release-notes__count": "Count the words of a text."}
    assert told["instructions"].startswith("Read references/style.md first.")
    out = loom("skills", "show", "release-notes").out
    assert "It has 2 scripts, which run in the sandbox" in out
    assert "It asks for the tools Bash(git *). This request alone allows nothing." in out
    (folder / "scripts/shout.py").unlink()
    assert "It has 1 script, which runs in the sandbox" in loom("skills", "show", "release-notes").out


def test_a_skill_that_is_not_trusted_can_be_looked_at(loom: Commands) -> None:
    write_skill(loom.folder / ".agents/skills", "theirs")
    assert json.loads(loom("skills", "show", "theirs", "--json").out)["state"] == "not trusted"
    ran = loom("skills", "show", "their")
    assert (ran.code, ran.err) == (USAGE, "there is no skill 'their': did you mean 'theirs'?")


@pytest.mark.parametrize("name", ["no-end", "not-yaml", "no-description"])
def test_a_broken_skill_does_not_pass(loom: Commands, name: str) -> None:
    write_broken_ones(loom.folder)
    ran = loom("skills", "validate", name, "--json")
    assert ran.code == USAGE
    told = json.loads(ran.out)
    assert (told["ok"], len(told["errors"])) == (False, 1)


def test_a_skill_with_warnings_passes_and_tells_them(loom: Commands) -> None:
    folder = write_skill(loom.folder, "x", more="model: opus\n", scripts__a_dot_py="# /// loom-tool\n")
    (folder / "link").symlink_to("/etc")
    ran = loom("skills", "validate", "x/SKILL.md")
    assert (ran.code, ran.out) == (0, "x: can be used\n")
    assert "unknown fields model" in ran.err
    assert "scripts/a.py: its `loom-tool` block has no end" in ran.err
    assert "link is a link: it is left out" in ran.err


def test_a_skill_is_copied_to_where_runs_find_it(loom: Commands, home: Path) -> None:
    folder = write_release_notes(loom.folder / "src")
    (folder / "scripts/shout.py").chmod(0o755)
    assert loom("skills", "add", "src/release-notes", "--yes").code == 0
    target = home / ".agents/skills/release-notes"
    assert (target / "scripts/shout.py").stat().st_mode & 0o777 == 0o755
    assert (target / "references/style.md").read_text() == "Be brief.\n"
    assert [path.name for path in target.parent.iterdir()] == ["release-notes"]
    again = loom("skills", "add", "src/release-notes", "--yes")
    assert again.code == USAGE
    assert "already exists: remove it first" in again.err
    assert loom("skills", "add", "src/release-notes", "--project", "--yes").code == 0
    assert (loom.folder / ".agents/skills/release-notes/SKILL.md").is_file()


def test_nothing_is_copied_that_nobody_agreed_to(loom: Commands, home: Path) -> None:
    write_release_notes(loom.folder / "src")
    ran = loom("skills", "add", "src/release-notes")
    assert ran.code == USAGE
    assert "then use --yes" in ran.err
    assert "It has 2 scripts" in ran.out
    assert not (home / ".agents").exists()


def test_a_skill_with_a_link_or_a_name_that_leads_elsewhere_is_not_taken_in(loom: Commands, home: Path) -> None:
    folder = write_skill(loom.folder / "src", "x", more="license: MIT\n")
    (folder / "SKILL.md").write_text("---\nname: ../../x\ndescription: Sly.\n---\nbody\n")
    assert loom("skills", "add", "src/x", "--yes").code == 0
    assert (home / ".agents/skills/x/SKILL.md").is_file()
    (folder / "references").symlink_to("/etc")
    ran = loom("skills", "add", "src/x", "--project", "--yes")
    assert (ran.code, "references is a link" in ran.err) == (USAGE, True)
    assert not (loom.folder / ".agents").exists()
    assert "is not a usable skill" in loom("skills", "add", "src", "--yes").err
    assert "neither a folder nor a SKILL.md" in loom("skills", "add", "nowhere", "--yes").err


def test_skills_of_packages_are_known_before_they_are_enabled_and_nothing_is_imported(
    loom: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    write_skill(site / "acme_notes" / "skills", "acme-notes")
    (site / "acme_notes/__init__.py").write_text("raise RuntimeError('imported')")
    facts = site / "acme_notes-1.2.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-notes\nVersion: 1.2\n")
    (facts / "entry_points.txt").write_text("[loom.skills]\nnotes = acme_notes.skills\n")
    monkeypatch.syspath_prepend(str(site))
    told = json.loads(loom("skills", "list", "--json").out)
    assert told["packages"] == [{"name": "acme-notes 1.2", "path": str(site / "acme_notes/skills"), "enabled": False}]
    shown = json.loads(loom("skills", "show", "acme-notes", "--json").out)
    assert (shown["state"], shown["source"]) == ("not enabled", "package acme-notes 1.2")
    (site / "acme_notes/__init__.py").write_text("")
    monkeypatch.setenv("LOOM_PACKAGES", "acme-notes")
    enabled = json.loads(loom("skills", "list", "--json").out)
    assert [skill["source"] for skill in enabled["skills"]] == ["package acme-notes 1.2"]
    assert enabled["packages"] == []


def test_an_app_registers_skills_from_beside_its_file(loom: Commands) -> None:
    write_release_notes(loom.folder / "mine" / "skills")
    (loom.folder / "mine/app.py").write_text(
        "from loom import LoomApp\napp = LoomApp()\napp.register_skill('skills')\n"
    )
    told = json.loads(loom("skills", "list", "--app", "mine/app.py:app", "--json").out)
    assert [(skill["name"], skill["source"]) for skill in told["skills"]] == [("release-notes", "app mine/app.py:app")]
    (loom.folder / "other.py").write_text("from loom import LoomApp\napp = LoomApp()\napp.register_skill('nowhere')\n")
    ran = loom("skills", "list", "--app", "other.py:app")
    assert ran.code == USAGE
    assert f"there is no folder {loom.folder}/nowhere with skills" in ran.err


def test_doctor_tells_of_skills_that_are_left_out(loom: Commands, home: Path) -> None:
    write_broken_ones(home / ".agents/skills")
    write_release_notes(home / ".agents/skills")
    part = json.loads(loom("doctor", "--json").out)["parts"]["skills"]
    assert (part["ok"], part["skills"], len(part["left_out"])) == (True, ["release-notes"], 6)
    assert part["note"] == "1 found, 6 skipped (see `loom skills list`)"
