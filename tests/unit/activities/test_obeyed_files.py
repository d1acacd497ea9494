"""Every file that programs obey, however deep it is and however it is written, asks."""

from dataclasses import replace
from pathlib import Path

import pytest

from loom.activities.adapters.shell.parser import BashParser
from loom.activities.toolbox.built_in.shell_files import with_files
from loom.domain.core.tool_calls import Verdict
from loom.domain.permissions.guards import protected
from loom.domain.permissions.judge import Judgement, Mode, judge
from loom.domain.permissions.obeyed import NAMES, PARENTS, PRODUCED, REMADE, SHAPES, is_obeyed, is_remade
from loom.domain.permissions.subjects import Place, Subject

PARSER = BashParser()
SHAPED = (
    *(
        ".env.production",
        ".envrc.local",
        "mise.production.toml",
        ".mcp.local.json",
        ".lefthook-local.toml",
        ".huskyrc.js",
    ),
    *(".lintstagedrc.json", "lint-staged.config.mjs", ".simple-git-hooks.json", "simple-git-hooks.cjs"),
    *(".commitlintrc.yml", "commitlint.config.js", ".clinerules-code", ".roorules-code", ".kilocoderules-code"),
    *("x.code-workspace", "x.sublime-project", "server.run.xml", "x.gitlab-ci.yml", "Jenkinsfile.release"),
)
"""A name of each shape."""
EVERY = sorted({*NAMES, *SHAPED, *REMADE, "x.pth"})
COMMANDS = (
    *("echo x > {}", "echo x >> {}", "cat <<E > {}\nx\nE", "echo x | tee {}", "echo x | tee -a y {}"),
    *("cp y {}", "mv y {}", "mv {} y", "ln -s y {}", "ln -sf /etc/y {}", "install -m 644 y {}"),
    *("sed -i s/a/b/ {}", "perl -pi -e s/a/b/ {}", "dd if=y of={}", "sort y -o {}", "curl -so {} http://x", "touch {}"),
    *("rsync y {}", "true && {{ echo x > {}; }}", "if true; then echo x > {}; fi", "mkdir -p {}"),
)
"""Ways to write a file from a shell."""
BELOW_BYPASS = (Mode.DEFAULT, Mode.ACCEPT_EDITS)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(workspace=str(tmp_path), home=str(tmp_path.parent))


def shell(line: str, place: Place, mode: Mode = Mode.DEFAULT) -> Judgement:
    commands = with_files(PARSER.parse(line), Path(place.workspace), place.home)
    return judge("bash", commands, {"bash": "allow"}, mode=mode, place=place)


def edit(tool: str, path: str, place: Place, mode: Mode = Mode.ACCEPT_EDITS) -> Judgement:
    subject = Subject(text=path, loose=f"{place.workspace}/{path}")
    return judge(tool, (subject,), {tool: "allow"}, mode=mode, place=place)


def nested(name: str) -> tuple[str, ...]:
    """The file at several depths, in an unusual spelling, and as a folder with a file in it."""
    return name, f"sub/{name}", f"a/b/{name}", f"{name}/x", name.upper()


@pytest.mark.parametrize("tool", ["write_file", "edit_file"])
def test_a_file_tool_asks_for_every_name_at_any_depth(tool: str, place: Place) -> None:
    unasked = [path for name in EVERY for path in nested(name) if edit(tool, path, place).verdict is not Verdict.ASK]
    assert unasked == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_way_of_writing_from_a_shell_asks_for_every_name(command: str, place: Place) -> None:
    unasked = [
        line
        for number, name in enumerate(EVERY)
        for line in (command.format(nested(name)[number % 4]),)
        if shell(line, place, BELOW_BYPASS[number % 2]).verdict is not Verdict.ASK
    ]
    assert unasked == []


OWN_FOLDERS = ("agents", "team/crews", "library/skills")
OWN_FILES = ("app.py", "src/shop/tools.py", "server.js")
OWN = (
    *("agents/default.yaml", "agents/tools/x.py", "team/crews/x.yml", "library/skills/x/run.sh", "library/skills"),
    *OWN_FILES,
)
"""What a worker reads that has no special name, and what is in its folders."""
DEFINED = ("agents/default.yaml", "agents/x.yml", "agents/X.TOML", "crews/x.yaml", "crews/x.toml", "crews/x.json")
"""What a worker would read if its app were in the workspace."""


@pytest.fixture
def served(place: Place) -> Place:
    """The workspace of a worker whose app is in it."""
    paths = frozenset(f"{place.workspace}/{path}" for path in (*OWN_FOLDERS, *OWN_FILES))
    return replace(place, obeyed=paths)


@pytest.mark.parametrize("path", OWN)
def test_every_way_of_writing_what_the_worker_reads_asks(path: str, served: Place) -> None:
    whole = f"{served.workspace}/{path}"
    folder, _, name = path.rpartition("/")
    lines = [each.format(spelled) for each in COMMANDS for spelled in (path, f"./x/../{path}", whole)]
    lines += [f"cd {folder or '.'} && {each.format(name)}" for each in COMMANDS]
    for mode in BELOW_BYPASS:
        assert [line for line in lines if shell(line, served, mode).verdict is not Verdict.ASK] == []
        for tool in ("write_file", "edit_file"):
            assert edit(tool, path, served, mode).verdict is Verdict.ASK
    assert edit("write_file", path, served, Mode.BYPASS).verdict is Verdict.ALLOW
    assert shell(f"rm -f {path}", served).verdict is Verdict.ASK


@pytest.mark.parametrize("path", DEFINED)
def test_every_way_of_writing_a_definition_asks_before_a_worker_reads_it(path: str, place: Place) -> None:
    lines = [each.format(spelled) for each in COMMANDS for spelled in (path, f"{place.workspace}/{path}")]
    assert [line for line in lines if shell(line, place).verdict is not Verdict.ASK] == []
    assert edit("write_file", path, place).verdict is Verdict.ASK
    assert edit("write_file", path, place, Mode.BYPASS).verdict is Verdict.ALLOW


@pytest.mark.parametrize(
    ("rule", "is_named"),
    [
        *(("write_file(agents/default.yaml)", True), ("write_file(/agents/default.yaml)", True)),
        *(("write_file(agents/**)", True), ("write_file(**)", False), ("write_file(*.yaml)", False)),
    ],
)
def test_only_a_rule_that_names_what_the_worker_reads_allows_it(rule: str, is_named: bool, served: Place) -> None:
    subject = Subject(text="agents/default.yaml", loose=f"{served.workspace}/agents/default.yaml")
    found = judge("write_file", (subject,), {rule: "allow"}, place=served)
    assert (found.verdict is Verdict.ALLOW) is is_named


@pytest.mark.parametrize("path", ["app.pyc", "apps/x.py", "src/shop/other.py", "agent/x.yaml", "team/agents/x.yaml"])
def test_what_is_beside_the_files_of_the_worker_is_written_unasked(path: str, served: Place) -> None:
    assert edit("write_file", path, served).verdict is Verdict.ALLOW
    assert shell(f"echo x > {path}", served).verdict is Verdict.ALLOW


def test_the_table_is_consistent() -> None:
    assert [name for name in NAMES if name != name.lower() or name.count("/") > 1] == []
    assert [name for name in SHAPED if SHAPES.fullmatch(name.lower()) is None] == []
    assert {name.partition("/")[0] for name in NAMES if "/" in name} == PARENTS
    assert frozenset() == NAMES & REMADE
    assert frozenset() == NAMES & PRODUCED


def test_guards_stop_exactly_what_the_sandbox_keeps_read_only_and_what_can_be_made_again() -> None:
    assert [name for name in EVERY if not protected(name)] == []
    places = [(last, folder) for folder, _, last in (name.rpartition("/") for name in EVERY)]
    assert [place for place in places if is_obeyed(*place) is is_remade(*place)] == []


@pytest.mark.parametrize(
    "path",
    [
        *(
            "Makefile",
            "pyproject.toml",
            "package.json",
            ".tool-versions",
            "CMakePresets.json",
            "Dockerfile",
            "Justfile",
        ),
        *(
            ".github/CODEOWNERS",
            ".config/settings.json",
            "gradle/libs.versions.toml",
            ".gradle/cache",
            ".local/share/x",
        ),
        *(".env.example", ".envrc.sample", "src/agents/base.py", "crews.yaml", "workflows/a.yml", "README.md"),
    ],
)
def test_what_an_agent_works_on_is_written_unasked(path: str, place: Place) -> None:
    assert edit("write_file", path, place).verdict is Verdict.ALLOW
    assert shell(f"echo x > {path}", place).verdict is Verdict.ALLOW
