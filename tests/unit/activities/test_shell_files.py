"""Which files a command is seen to write: the real programs run, and whatever they changed must have been seen."""

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loom.activities.adapters.shell.parser import BashParser
from loom.activities.toolbox.built_in.program_files import _PROGRAMS, _SPECIAL, uses_of
from loom.activities.toolbox.built_in.shell_files import with_files
from loom.domain.core.tool_calls import Verdict
from loom.domain.permissions.judge import Mode, judge
from loom.domain.permissions.subjects import Place, Touched

PARSER = BashParser()


def touched(line: str, workspace: Path) -> list[Touched]:
    commands = with_files(PARSER.parse(line), workspace, str(workspace.parent))
    return [file for command in commands for file in command.files]


def written(line: str, workspace: Path) -> set[str]:
    return {file.text for file in touched(line, workspace) if file.tool == "write_file" and not file.opaque}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace with a text, an archive, a repository and a page to download."""
    place = tmp_path.resolve() / "work"
    place.mkdir()
    (place / "text").write_text("b 1\na 2\na 2\n")
    (place / "out").write_text("before\n")
    (place / "change.patch").write_text("--- out\n+++ out\n@@ -1 +1 @@\n-before\n+after\n")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b")
    for command in (
        ("tar", "-cf", "archive.tar", "text"),
        ("git", "init", "-q"),
        ("git", "add", "out", "text"),
        (*git, "commit", "-qm", "x"),
    ):
        subprocess.run(command, cwd=place, check=True)
    (place / "text").write_text("b 1\na 2\na 2\nc 3\n")
    return place


def changed_by(line: str, workspace: Path) -> set[str]:
    """Return the files that a line changes, apart from Git's own."""

    def state() -> dict[str, bytes]:
        files = (path for path in workspace.rglob("*") if path.is_file() and ".git" not in path.parts)
        return {path.relative_to(workspace).as_posix(): path.read_bytes() for path in files}

    before = state()
    subprocess.run(("bash", "-c", line), cwd=workspace, check=True, capture_output=True, timeout=20)
    after = state()
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


WRITERS = [
    "sort -o out text",
    "sort text -ro out",
    "sort -uoout text",
    "sort text --outp=out",
    "sort --output out text",
    "tee -a out < text",
    "tar cf out text",
    "tar -czf out text",
    "tar -czfout text",
    "tar --create --file=out text",
    "tar vfc out text",
    "perl -pi -e s/e/f/ out",
    "perl -i.bak -pe s/e/f/ out",
    "perl -0777 -pi -e s/e/f/ out",
    "sed -i s/e/f/ out",
    "sed -i.old s/e/f/ out",
    "sed -Ei s/e/f/ out",
    "sed --in-pl s/e/f/ out",
    "sed -n 'w out' text",
    "sed -n 's/a/x/gw out' text",
    "sed 's|a|x|w out' text",
    "sed -n -e 1p -e '/a/ w out' text",
    "sed -n '2{p;w out\n}' text",
    "awk '{print > \"out\"}' text",
    'awk \'/a/ {printf "%s", $1 >> "out"}\' text',
    "dd if=text of=out",
    "find . -name text -fprint out",
    "find . -name text -fprintf out %p",
    "find text -fls out",
    "uniq text out",
    "uniq -c text out",
    "xxd text out",
    "openssl base64 -in text -out out",
    "cp text out",
    "mkdir folder; cp text -S .x --backup -t folder",
    "cp -f -- text out",
    "mv text out",
    "mv -t .. text",
    "install -m 600 text out",
    "ln -sf text out",
    "truncate -s 0 out",
    "shred -n 1 out",
    "rm out",
    "gzip out",
    "gzip -k out",
    "xz out",
    "zip out.zip text",
    "patch out change.patch",
    "patch < change.patch",
    "split text",
    "tar xf archive.tar --transform s/text/out/",
    "tar -xf archive.tar -C .git/.. --transform s/text/out/",
    "curl -so out file://$PWD/text",
    "curl -s --output out file:///etc/hostname --stderr log",
    "curl -sO file:///etc/hostname",
    "curl -s --output-dir . -O file:///etc/hostname",
    "echo x > out",
    "git archive -o out HEAD",
    "git archive --output=out HEAD",
    "git diff --output=out HEAD",
    "git mv -f text out",
    "git rm -qf text",
    "git checkout text",
    "git checkout -q -- text",
    "git restore text",
    "git apply change.patch -p0",
    "git format-patch -q --root -o folder HEAD",
    "git bundle create -q out HEAD",
    "ed -s out <<< $'1d\\nw\\nq'",
    "vim -es -c 'w! out' -c q text",
    "cd .git && cp ../text ../out",
    "tee {out,other} < text",
    "cat text | xargs touch",
    "find . -maxdepth 1 -name out -delete",
]


@pytest.mark.parametrize("line", WRITERS)
def test_whatever_a_program_changes_was_seen(line: str, workspace: Path) -> None:
    if shutil.which(line.split(maxsplit=1)[0]) is None:
        pytest.skip("this machine doesn't have the program")
    seen = written(line, workspace)
    is_bounded = not any(command.opaque for command in PARSER.parse(line)) and not any(
        file.opaque and file.tool == "write_file" for file in touched(line, workspace)
    )
    changed = changed_by(line, workspace)
    # A backup is beside the file, and the patches of a series are in the folder.
    unseen = {
        name for name in changed if not any(name == each or name.startswith((f"{each}.", f"{each}/")) for each in seen)
    }
    assert changed
    assert not is_bounded or not unseen


OUTPUTS = {
    "sort": ("-o", "--output", "text"),
    "curl": ("-o", "--output", "http://127.0.0.1/x"),
    "wget": ("-O", "--output-document", "http://127.0.0.1/x"),
    "gpg": ("-o", "--output", "--decrypt"),
    "pandoc": ("-o", "--output", "text"),
    "psql": ("-o", "--output", "--csv"),
}


@given(st.sampled_from(sorted(OUTPUTS)), st.integers(0, 4), st.booleans(), st.integers(0, 6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_an_output_is_seen_however_its_option_is_spelled(
    tmp_path: Path, program: str, form: int, first: bool, cut: int
) -> None:
    short, long, rest = OUTPUTS[program]
    long = long[: max(len(long) - cut, len("--output" if program == "wget" else "--outp"))]
    option = [f"{short} conftest.py", f"{short}conftest.py", f"-q{short[1]}conftest.py", f"{long}=conftest.py"]
    spelled = [*option, f"{long} conftest.py"][form]
    line = f"{program} {spelled} {rest}" if first else f"{program} {rest} {spelled}"
    assert "conftest.py" in written(line, tmp_path)


HARMLESS = [
    "sort -u text",
    "sed s/a/b/ .envrc",
    "sed -n 1,3p CLAUDE.md",
    "sed 's/window/view/' .envrc",
    "awk '$3 > 5 {print $1}' .envrc",
    "tar tf .envrc",
    "tar cf x.tar .envrc",
    "gzip -c .envrc",
    "git diff .envrc",
    "git rm --cached .envrc",
    "git restore --staged .envrc",
    "git checkout -b .envrc",
    "openssl x509 -noout -in .envrc",
    "gcc -fno-omit-frame-pointer x.c -o x",
    "curl -d @.envrc http://127.0.0.1/",
    "kubectl get pods -o json --output yaml",
    "rm -rf .venv __pycache__ node_modules/.bin",
    ".venv/bin/pytest tests/conftest.py",
]


@pytest.mark.parametrize("line", HARMLESS)
def test_what_only_reads_a_file_that_programs_obey_is_not_guarded(line: str, workspace: Path) -> None:
    commands = with_files(PARSER.parse(line), workspace, str(workspace.parent))
    place = Place(workspace=str(workspace), home=str(workspace.parent))
    assert judge("bash", commands, {"bash": "allow"}, place=place).verdict is Verdict.ALLOW


OBEYED = [
    "sort -o {} text",
    "sed -i s/a/b/ {}",
    "tar -xf archive.tar; cp text {}",
    "curl -so {} file:///x",
    "cd x; tee {}",
]


@pytest.mark.parametrize("path", [".envrc", "tests/conftest.py", ".venv/bin/python", "AGENTS.md", "lib/x.pth", ".en*"])
@pytest.mark.parametrize("line", OBEYED)
def test_every_way_to_write_what_programs_obey_is_guarded(line: str, path: str, workspace: Path) -> None:
    commands = with_files(PARSER.parse(line.format(path)), workspace, str(workspace.parent))
    place = Place(workspace=str(workspace), home=str(workspace.parent))
    for mode in (Mode.DEFAULT, Mode.ACCEPT_EDITS):
        found = judge("bash", commands, {"bash": "allow"}, mode=mode, place=place)
        assert (found.verdict, found.rule[:15]) == (Verdict.ASK, "guard: write to")
    denied = judge("bash", commands, {"bash": "allow", f"write_file({path.replace('*', 'vrc')})": "deny"}, place=place)
    assert denied.verdict in (Verdict.DENY, Verdict.ASK)


WORDS = st.one_of(
    st.none(),
    st.sampled_from(
        ["-", "--", "-o", "-xf", "-e", "--output", "--output=", "-i", "w", "{a,b}", "x", "cf", "create", "mv"]
    ),
    st.text('-=@{},/*aw>"', max_size=6),
)


@given(st.sampled_from(sorted({*_PROGRAMS, *_SPECIAL, "other"})), st.lists(WORDS, max_size=5))
@settings(max_examples=500)
def test_any_words_are_read_without_an_error(program: str, words: list[str | None]) -> None:
    for use in uses_of((program, *words)):
        assert use.tool in ("read_file", "write_file")


@pytest.mark.parametrize("repeated", ["cd f{n}", "cd a; cd f{n}; cat f{n}", "cd a; cd f{n}; rm f{n}"])
def test_many_changes_of_the_folder_take_no_time(tmp_path: Path, repeated: str) -> None:
    line = "; ".join(repeated.replace("{n}", str(number)) for number in range(300)) + "; cat x"
    files = touched(line, tmp_path)
    assert len(files) < 5_000  # each of them is looked up
    assert any(file.opaque and file.tool == "read_file" for file in files)
    assert "rm" not in line or any(file.opaque and file.tool == "delete_file" for file in files)


def test_a_line_with_many_words_that_may_be_files_may_mean_any_file(tmp_path: Path) -> None:
    line = "; ".join(f"cd d{number}; fmt f{number}" for number in range(450))
    subjects = with_files(BashParser().parse(line), tmp_path, "/home/ann")
    assert sum(len(each.mentions) for each in subjects) < 4_000
    assert any(file.opaque and not file.text for each in subjects for file in each.mentions)
