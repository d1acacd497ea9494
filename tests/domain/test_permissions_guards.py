"""What asks although a rule allows it."""

import pytest

from loom.domain.core.tool_calls import Verdict
from loom.domain.permissions.guards import protected
from loom.domain.permissions.judge import Judgement, Mode, judge
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
    "path", ["src/a.py", ".env.example", ".github/CODEOWNERS", "environment", "git/x", ".gitignore"]
)
def test_other_files_are_written_as_the_rules_say(path: str) -> None:
    subject = (Subject(text=path, loose=f"/home/ann/work/{path}"),)
    assert judge("write_file", subject, {"write_file": "allow"}, place=PLACE).verdict is ALLOW
    assert judge("write_file", subject, {}, mode=Mode.ACCEPT_EDITS, place=PLACE).verdict is ALLOW


def test_a_guard_never_softens_a_deny() -> None:
    assert judged({"default": "deny"}, "git reset --hard").rule == "default"
    assert judged({"bash": "deny"}, "rm -rf /").rule == "bash"
