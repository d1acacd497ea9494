"""What asks although a rule allows it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.tool_calls import Verdict
from loom.domain.permissions.guards import protected
from loom.domain.permissions.judge import Judgement, Mode, judge
from loom.domain.permissions.patterns import escaped
from loom.domain.permissions.subjects import Place, Subject, Touched

ALLOW, ASK, DENY = Verdict.ALLOW, Verdict.ASK, Verdict.DENY
PLACE = Place(workspace="/home/ann/work", home="/home/ann")


def command(line: str) -> Subject:
    return Subject(text=line, words=tuple(line.replace('"', "").split()))


def judged(rules: dict[str, str], *lines: str, mode: Mode = Mode.DEFAULT, grants: tuple[str, ...] = ()) -> Judgement:
    return judge("bash", [command(line) for line in lines], rules, mode=mode, grants=grants, place=PLACE)


@pytest.mark.parametrize(
    "line",
    [
        "rm -rf /",
        "rm -rf /etc",
        "rm -rf /*",
        "/bin/rm -rf /usr/",
        "rm -rf ~",
        "rm -rf ~/",
        "rm -rf ~/*",
        "rm -rf /home/ann/../ann",
        "rm -rf /home",
        "rm -rf .",
        "rm -rf ./",
        "rm -rf *",
        "rm -rf ./*",
        "rm -rf ..",
        "rm -rf ../..",
        "rm -rf src/..",
        "rmdir /home/ann/work",
        'rm -rf "$DIR"/*',
        "rm -rf ${DIR}/",
        "rm -rf $DIR/*",
        'rm -rf "$HOME"',
        "rm -rf ${HOME}/",
        "rm -rf $PWD",
        "rm -rf ~root",
        "rm -rf {/,x}",
    ],
)
def test_removing_a_critical_folder_asks_whatever_the_rules_the_mode_and_the_grants_say(line: str) -> None:
    for mode in (Mode.DEFAULT, Mode.ACCEPT_EDITS, Mode.BYPASS):
        found = judged({"bash": "allow", f"bash({line})": "allow"}, line, mode=mode, grants=(f"bash({line})",))
        assert (found.verdict, found.rule[:8], found.can_be_granted) == (ASK, "guard: r", False)
    assert judged({"bash": "allow"}, line, mode=Mode.READ_ONLY).verdict is DENY
    assert judged({"bash": "allow", "bash(*rm*)": "deny"}, line, mode=Mode.BYPASS).verdict is DENY


@pytest.mark.parametrize(
    "line", ["rm -rf build", "rm x", "rm -rf ./a/b", "rm /tmp/x/y", 'rm "$FILE"', "rm *.o", "ls /"]
)
def test_removing_anything_else_goes_by_the_rules(line: str) -> None:
    assert judged({"bash": "allow"}, line).verdict is ALLOW


CRITICAL = [
    "/",
    "/etc",
    "/home",
    "/home/ann",
    "~",
    ".",
    "..",
    "../..",
    "/home/ann/work",
    "../work",
    "sub/..",
    "../../ann",
]
EVERYTHING = ["*", "?*", "*.*", "[a-z]*", ".[!.]*", "*/", "*/*", "**", "{*,.*}", "./*", "!(keep)"]
RECURSIVE = ["-rf", "-fr", "-Rf", "-r -f", "--recursive", "-f --recurs", "-vfr", "-rf --no-preserve-root", "-rf --"]


@st.composite
def removals(draw: st.DrawFn) -> str:
    """A command that removes a critical folder or all that is in one, in any spelling."""
    path = draw(st.sampled_from(CRITICAL))
    path = path.rstrip("/") + draw(st.sampled_from(["", "/", "//", "/.", "/x/.."])) if path != "/" else path
    if draw(st.booleans()):
        path = f"{path.rstrip('/')}/{draw(st.sampled_from(EVERYTHING))}"
    elif path not in ("~", "~/") and draw(st.booleans()):
        path = f"{{build,{path}}}"
    program, options = draw(st.sampled_from(["rm", "/bin/rm"])), draw(st.sampled_from(RECURSIVE))
    operands = " ".join(draw(st.permutations([path, *draw(st.lists(st.just("build"), max_size=1))])))
    is_after = draw(st.booleans()) and "--" not in options.split()
    return f"{program} {operands} {options}" if is_after else f"{program} {options} {operands}"


@given(removals())
def test_a_critical_folder_is_recognized_in_any_spelling(line: str) -> None:
    found = judged({"bash": "allow"}, line, mode=Mode.BYPASS)
    assert (found.verdict, found.rule[:11], found.can_be_granted) == (ASK, "guard: rm o", False)


@given(
    st.sampled_from(["cd ..", "pushd ../", "cd sub/../..", "env -C .. true"]),
    st.sampled_from(["work", "./wor?", "*k/*"]),
)
def test_a_path_counts_from_each_folder_that_the_line_may_be_in(change: str, path: str) -> None:
    assert judged({"bash": "allow"}, change, f"rm -rf {path}", mode=Mode.BYPASS).verdict is ASK
    assert judged({"bash": "allow"}, f"rm -rf {path}").verdict is ALLOW


UNBOUNDED = [
    ("find . -delete", True),
    ("find -type f -delete", True),
    ("find . -mindepth 1 -exec rm -rf {} +", True),
    ("find / -type f -exec /bin/rm {} ;", True),
    ("find . -mtime +3 -delete", False),
    ("find . ! -name keep -delete", False),
    ("find . -name x -o -delete", False),
    ("find . -name * -delete", False),
    ("find . -exec sudo rm {} ;", True),
    ("fd . -x rm", False),
    ("rsync -a --delete empty/ .", False),
    ("tar --remove-files -cf /tmp/x/a.tar src", False),
    ("shred -u notes", False),
    ("mv * /tmp/x", False),
    ("mkfs.ext4 /dev/sda1", False),
]


@pytest.mark.parametrize(("line", "is_firm"), UNBOUNDED)
def test_what_removes_without_naming_it_is_guarded(line: str, is_firm: bool) -> None:
    assert judged({"bash": "allow"}, line).verdict is ASK
    assert judged({f"bash({escaped(line)})": "allow"}, line).verdict is (ASK if is_firm else ALLOW)


def test_a_recursive_removal_of_computed_paths_is_guarded() -> None:
    for words in (("rm", "-rf", None), ("rm", None, "-r"), ("rm", "-rf")):
        subject = Subject(text='rm -rf "$X"', words=words)
        assert judge("bash", (subject,), {"bash(rm:*)": "allow"}, place=PLACE).verdict is ASK
        assert judge("bash", (subject,), {"bash(rm -rf:*)": "allow"}, place=PLACE).verdict is ALLOW


def test_what_xargs_removes_is_guarded() -> None:
    fed = (Subject(text="ls"), Subject(text="rm -f", loose="xargs rm -f", words=("rm", "-f", None)))
    assert judge("bash", fed, {"bash": "allow"}, place=PLACE).rule == "guard: rm of what xargs passes"


@pytest.mark.parametrize(
    "line",
    [
        "find . -name *.pyc -delete",
        "find . ( -name *.pyc -o -name *.pyo ) -delete",
        "find . -not -path ./x -name *.orig -exec rm -f {} +",
        "find . -type d -empty -delete",
        "find build -delete",
        "find . -name *.py -exec grep rm {} ;",
        "rsync -a src/ copy/",
        "mv dist/* .",
    ],
)
def test_a_bounded_removal_goes_by_the_rules(line: str) -> None:
    assert judged({"bash": "allow"}, line).verdict is ALLOW


def test_a_link_to_a_critical_folder_counts_as_what_it_is() -> None:
    linked = Touched(tool="write_file", text="/home/ann", loose="/home/ann")
    subject = Subject(text="rm -rf link", words=("rm", "-rf", "link"), files=(linked,))
    assert judge("bash", (subject,), {"bash": "allow"}, place=PLACE).rule == "guard: rm of /home/ann"


@pytest.mark.parametrize(
    "line",
    [
        "git reset --hard",
        "git reset --har HEAD~1",
        "git -C . reset --hard",
        "git --no-pager reset --hard HEAD",
        "git clean -fd",
        "git clean -xdf",
        "git clean --force",
        "git checkout -- .",
        "git checkout .",
        "git checkout -f main",
        "git checkout HEAD~1 a.py",
        "git restore a.py",
        "git restore --staged --worktree a.py",
        "git switch --discard-changes main",
        "git push --force",
        "git push -f origin main",
        "git push --force-with-lease=main",
        "git push origin +main",
        "git push origin :main",
        "git push origin --delete main",
        "git branch -D x",
        "git branch -d --force x",
        "git stash drop",
        "git stash clear",
        "git reflog expire --all",
        "git tag -d v1",
        "git worktree remove --force x",
        "git update-ref -d refs/heads/x",
        "git filter-branch",
        "git config core.hooksPath x",
        "/usr/bin/git reset --hard",
    ],
)
def test_git_that_destroys_work_asks_unless_a_rule_spells_it_out(line: str) -> None:
    for rules in ({"bash": "allow"}, {"default": "allow"}, {"bash(git:*)": "allow"}, {"bash(*)": "allow"}):
        found = judged(rules, line)
        assert (found.verdict, found.rule[:10], found.can_be_granted) == (ASK, "guard: git", True)
    assert judged({"bash": "ask", f"bash({line}:*)": "allow"}, line).verdict is ALLOW
    assert judged({}, line, grants=(f"bash({line})",)).verdict is ALLOW
    assert judged({}, line, grants=("bash(git:*)",)).verdict is ASK
    assert judged({}, line, mode=Mode.BYPASS).verdict is ALLOW
    assert judged({"bash": "allow", "bash(*git*)": "deny"}, line, mode=Mode.BYPASS).verdict is DENY


@pytest.mark.parametrize(
    "line",
    [
        "git status",
        "git reset HEAD a.py",
        "git clean -n",
        "git checkout main",
        "git checkout -b x origin/main",
        "git restore --staged a.py",
        "git push -u origin main",
        "git push --follow-tags",
        "git branch -d x",
        "git stash",
        "git stash list",
        "git reflog",
        "git commit -m reset",
        "git log --hard",
        "git config user.name",
        "git config --get core.editor x",
    ],
)
def test_git_that_destroys_nothing_goes_by_the_rules(line: str) -> None:
    assert judged({"bash": "allow"}, line).verdict is ALLOW


DANGEROUS = {
    # command: the options that make it dangerous, and the rest of the command
    "reset": ("--hard --merge --keep", "HEAD~1"),
    "push": ("-f --force --force-with-lease --mirror --delete -d --receive-pack=x --exec=x", "origin x"),
    "fetch": ("-f --force --upload-pack=x --update-head-ok", "origin"),
    "pull": ("-f --force --upload-pack=x", "origin"),
    "ls-remote": ("--upload-pack=x --exec=x", "origin"),
    "clone": ("-ux -cx=y --upload-pack=x --config=x --template=x", "https://example.com/x"),
    "rm": ("-r -f --force", "x"),
    "branch": ("-D -f --force -M -C", "x"),
    "switch": ("-f --force --discard-changes -Cx --force-create=x", "main"),
    "tag": ("-d --delete -f --force", "v1"),
    "merge": ("--abort", ""),
    "rebase": ("--abort --skip -xid --exec=id", ""),
    "cherry-pick": ("--abort --skip", ""),
    "grep": ("-O -Oid --open-files-in-pager", "x"),
    "archive": ("--exec=x", "HEAD"),
    "log": ("--ext-diff --textconv", ""),
    "submodule update": ("-f --force", ""),
    "worktree add": ("-f --force -Bx", "../x"),
}


@st.composite
def git_commands(draw: st.DrawFn) -> tuple[str, str]:
    """A dangerous Git command in any spelling, and the same command without the dangerous option."""
    verb = draw(st.sampled_from(sorted(DANGEROUS)))
    options, rest = DANGEROUS[verb]
    option = draw(st.sampled_from(options.split()))
    name, equals, value = option.partition("=")
    if name.startswith("--"):
        name = name[: draw(st.integers(min(len(name), 7), len(name)))]
        option = f"{name}{draw(st.sampled_from(['=', ' ']))}{value}" if equals else name
    else:
        option = draw(st.sampled_from([option, f"-q{option[1:]}"]))
    before = draw(st.sampled_from(["git", "git --no-pager", "/usr/bin/git -p", "git -c color.ui=always"]))
    parts = draw(st.permutations([option, *([rest] if rest else [])]))
    return f"{before} {verb} {' '.join(parts)}", f"{before} {verb} {rest}"


@given(git_commands())
def test_a_dangerous_git_option_is_recognized_in_any_spelling(lines: tuple[str, str]) -> None:
    dangerous, plain = lines
    assert judged({"bash": "allow"}, dangerous).rule[:10] == "guard: git"
    assert judged({"bash(git:*)": "allow"}, dangerous).verdict is ASK
    assert judged({"bash": "allow"}, plain).verdict is ALLOW


@pytest.mark.parametrize(
    "line",
    [
        "git fetch origin +x:main",
        "git pull origin +x:main",
        "git update-ref refs/heads/main HEAD~3",
        "git symbolic-ref HEAD refs/heads/x",
        "git replace a b",
        "git worktree remove x",
        "git notes remove HEAD",
        "git remote set-url origin x",
        "git clean -xd",
        "git checkout src/",
        "git checkout --ours a.py",
        "git difftool -x id",
        "git mergetool",
        "git bisect run id",
        "git submodule foreach id",
        "git merge-index id -a",
        "git credential fill",
        "git send-email x",
        "git clone ext::id x",
        "git remote add x ext::id",
        "git config --unset core.hooksPath",
        "git config set core.pager id",
        "git maintenance start",
        "GIT_SSH_COMMAND=id git fetch",
        "GIT_EDITOR=id git commit",
        "git -c alias.x=!id x",
    ],
)
def test_git_that_rewrites_or_runs_a_program_is_guarded(line: str) -> None:
    subject = Subject(text=line, words=tuple(word for word in line.split() if not word.startswith("GIT_")))
    assert judge("bash", (subject,), {"bash": "allow"}, place=PLACE).rule[:10] == "guard: git"


@pytest.mark.parametrize(
    "line",
    [
        "git fetch origin +refs/heads/*:refs/remotes/origin/*",
        "git fetch origin main:main",
        "git symbolic-ref --short HEAD",
        "git checkout -bfix origin/main",
        "git tag -mfoo v1",
        "git stash push -m clear",
        "git rm -r --cached .",
        "git rebase -i HEAD~3",
        "git commit --amend",
        "git config get core.editor",
        "git config -f .gitmodules submodule.x.url",
        "git config user.email a@b",
        "git -c user.name=x commit -m y",
        "GIT_EDITOR=true git rebase --continue",
        "GIT_AUTHOR_NAME=x git commit",
        "git submodule update --init --recursive",
        "git remote add origin https://example.com/x",
    ],
)
def test_everyday_git_goes_by_the_rules(line: str) -> None:
    subject = Subject(text=line, words=tuple(word for word in line.split() if not word.startswith("GIT_")))
    assert judge("bash", (subject,), {"bash": "allow"}, place=PLACE).verdict is ALLOW


def test_a_git_verb_that_nobody_can_read_asks() -> None:
    for words in (("git", None, "x"), ("git", "reset", None)):
        subject = Subject(text="git $X", words=words)
        assert judge("bash", (subject,), {"bash": "allow"}, place=PLACE).verdict is ASK


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        (("cd /other", "git status"), ASK),
        (("cd sub", "git status"), ASK),
        (("pushd ..", "git log"), ASK),
        (("cd", "git log"), ASK),
        (("cd -", "git log"), ASK),
        (("git -C /other status",), ASK),
        (("git --git-dir=/x status",), ASK),
        (("git -c core.fsmonitor=x status",), ASK),
        (("export GIT_DIR=/x", "git status"), ASK),
        (("cd /home/ann/work", "git status"), ALLOW),
        (("cd .", "git status"), ALLOW),
        (("cd sub", "ls"), ALLOW),
    ],
)
def test_git_in_another_folder_asks_since_that_folder_says_what_git_runs(
    lines: tuple[str, ...], verdict: Verdict
) -> None:
    assert judged({"bash": "allow"}, *lines).verdict is verdict
    assert judged({"bash": "allow"}, *lines, grants=tuple(f"bash({line})" for line in lines)).verdict is ALLOW


def test_git_with_another_repository_in_its_environment_asks() -> None:
    subject = Subject(text="GIT_DIR=/x git status", loose="git status", words=("git", "status"))
    assert judge("bash", (subject,), {"bash": "allow"}, place=PLACE).verdict is ASK


PROTECTED = [
    ".git/hooks/pre-commit",
    "sub/.git/config",
    ".GIT/config",
    ".vscode/settings.json",
    ".idea/x",
    ".husky/pre-push",
    ".bashrc",
    "home/.zshrc",
    ".profile",
    ".npmrc",
    ".pre-commit-config.yaml",
    ".mcp.json",
    ".github/workflows/ci.yml",
    "loom.toml",
    ".env",
    "app/.env.production",
    ".envrc",
    ".venv/bin/python",
    "venv/lib/x.py",
    "node_modules/.bin/jest",
    "lib/site-packages/x.py",
    "src/__pycache__/x.pyc",
    "sitecustomize.py",
    "lib/usercustomize.py",
    "x.pth",
    "tests/conftest.py",
    "lefthook.yml",
    ".mise.toml",
    ".cursor/rules/x.md",
    ".codex/config.toml",
    ".gemini/settings.json",
    ".claude/settings.json",
    "sub/CLAUDE.md",
    "AGENTS.md",
    "GEMINI.md",
    ".github/copilot-instructions.md",
    ".agents/skills/x/SKILL.md",
    "skills/x/SKILL.md",
    ".loom/agents/x.yaml",
    ".zed/tasks.json",
    ".config/fish/config.fish",
    ".gitattributes",
    ".crush.json",
    ".kilocode/rules/x.md",
    ".trae/rules/x.md",
    ".roomodes",
    "WARP.md",
    "mcp.json",
    ".envrc.local",
    ".bazelrc",
    "CMakeUserPresets.json",
    ".pnp.cjs",
]


@pytest.mark.parametrize("path", PROTECTED)
@pytest.mark.parametrize("tool", ["write_file", "edit_file"])
def test_writing_what_programs_obey_asks_unless_a_rule_names_it(tool: str, path: str) -> None:
    subject = (Subject(text=path, loose=f"/home/ann/work/{path}"),)
    for rules, mode in (
        ({tool: "allow"}, Mode.DEFAULT),
        ({"default": "allow"}, Mode.DEFAULT),
        ({f"{tool}(**)": "allow"}, Mode.DEFAULT),
        ({}, Mode.ACCEPT_EDITS),
    ):
        found = judge(tool, subject, rules, mode=mode, place=PLACE)
        assert (found.verdict, found.rule) == (ASK, f"guard: write to {protected(path)}")
    assert judge(tool, subject, {f"{tool}({path})": "allow"}, place=PLACE).verdict is ALLOW
    assert judge(tool, subject, {}, grants=(f"{tool}({path})",), place=PLACE).verdict is ALLOW
    assert judge(tool, subject, {}, grants=(tool,), place=PLACE).verdict is ASK
    assert judge(tool, subject, {}, mode=Mode.BYPASS, place=PLACE).verdict is ALLOW
    assert judge(tool, subject, {f"{tool}(**)": "deny"}, mode=Mode.BYPASS, place=PLACE).verdict is DENY


@pytest.mark.parametrize(
    "path",
    [
        *("src/a.py", ".env.example", ".github/CODEOWNERS", "environment", "git/x", ".gitignore", "Makefile"),
        *(
            "pyproject.toml",
            "package.json",
            "node_modules/x/index.js",
            "README.md",
            "docs/agents.md.txt",
            ".tool-versions",
        ),
    ],
)
def test_other_files_are_written_as_the_rules_say(path: str) -> None:
    subject = (Subject(text=path, loose=f"/home/ann/work/{path}"),)
    assert judge("write_file", subject, {"write_file": "allow"}, place=PLACE).verdict is ALLOW
    assert judge("write_file", subject, {}, mode=Mode.ACCEPT_EDITS, place=PLACE).verdict is ALLOW


WORDS = st.one_of(
    st.none(),
    st.sampled_from(
        [
            "-",
            "--",
            "-r",
            "-delete",
            "-exec",
            "-name",
            "-o",
            "!",
            "(",
            ";",
            "{}",
            "-C",
            "-c",
            "config",
            "+",
            "{a,b}",
            ".",
        ]
    ),
    st.text("-=@{},/*+:", max_size=6),
)


@given(st.sampled_from(["rm", "find", "fd", "git", "mv", "rsync", "cd", "env"]), st.lists(WORDS, max_size=6))
def test_any_words_are_judged_without_an_error(program: str, words: list[str | None]) -> None:
    subject = Subject(text=program, words=(program, *words))
    assert judge("bash", (subject,), {"bash": "allow"}, place=PLACE).verdict in (ALLOW, ASK)


def test_a_guard_never_softens_a_deny() -> None:
    assert judged({"default": "deny"}, "git reset --hard").rule == "default"
    assert judged({"bash": "deny"}, "rm -rf /").rule == "bash"


@pytest.mark.parametrize(
    "line", ["find / -delete -name x", "find . -delete -name *.pyc", "find . -exec rm -rf {} + -name x"]
)
def test_a_test_after_the_removal_restricts_nothing(line: str) -> None:
    assert judged({"bash": "allow"}, line, mode=Mode.BYPASS).verdict is ASK


@pytest.mark.parametrize("line", ["find . -name *.pyc -delete", "find . ( -name a -o -name b ) -delete"])
def test_a_test_before_the_removal_restricts_it(line: str) -> None:
    assert judged({"bash": "allow"}, line).verdict is ALLOW


@pytest.mark.parametrize(
    "line", ["git clean -fdx -e -n", "git clean -fdxe -n", "git rm -rf --pathspec-from-file --cached"]
)
def test_the_value_of_an_option_is_no_option(line: str) -> None:
    assert judged({"bash": "allow"}, line).verdict is ASK


@pytest.mark.parametrize("path", [".env", ".git/config", "sub/.vscode/tasks.json", "conftest.py"])
def test_deleting_what_controls_other_programs_is_asked_for(path: str) -> None:
    rules = {"delete_file": "allow"}
    assert judge("delete_file", [Subject(text=path, loose=f"/w/{path}")], rules).verdict is Verdict.ASK
    assert judge("delete_file", [Subject(text="a.py", loose="/w/a.py")], rules).verdict is Verdict.ALLOW


def test_edits_that_are_accepted_include_no_deletion() -> None:
    subjects = [Subject(text="a.py", loose="/w/a.py")]
    assert judge("delete_file", subjects, {}, mode=Mode.ACCEPT_EDITS).verdict is Verdict.ASK
    assert judge("write_file", subjects, {}, mode=Mode.ACCEPT_EDITS).verdict is Verdict.ALLOW
    assert judge("delete_file", subjects, {"delete_file": "allow", "write_file(*.py)": "deny"}).verdict is Verdict.DENY
