"""Guards see through what the parser can't: text that a shell runs, computed words, and other names of a folder."""

from pathlib import Path
from time import process_time
from typing import Final

import pytest

from loom.activities.adapters.shell.parser import BashParser
from loom.activities.toolbox.built_in.shell import shell_tool
from loom.domain.core.tool_calls import Verdict
from loom.domain.permissions.judge import Judgement, Mode, judge
from loom.domain.permissions.subjects import Place

HIDING: Final = (
    "eval {}",
    "eval '{}'",
    'eval "{}; $x"',
    "ls ${{x:-`{}`}}",
    ": ${{x:=$({})}}; $x",
    "let 'a[$({})]'",
    "printf -v 'a[$({})]' x",
    ". <(echo '{}')",
    "source <(printf '{}')",
    "bash -c \"$(echo '{}')\"",
    "x='{}'; $x",
    "x=$(echo '{}'); eval $x",
    "$(echo '{}')",
    "trap '{}' EXIT",
    "mapfile -C '{}' -c 1 a",
)
"""Ways to run a text that the tree doesn't show as a command."""
GUARDED: Final = (
    "rm -rf *",
    "/bin/rm -rf *",
    "rm -rf /proc/self/cwd/*",
    "shred -u x",
    "mkfs.ext4 /dev/sdb",
    "truncate -s 0 x",
    "git reset --hard",
    "git clean -fdx",
    "git push --force",
    "find . -delete",
    "rsync -a --delete x/ .",
    "tee .env",
    "cp x .git/hooks/pre-commit",
    "tee .vscode/settings.json",
)


def judged(command: str, mode: Mode = Mode.DEFAULT) -> Judgement:
    workspace = Path("/home/ann/work")
    tool = shell_tool(None, BashParser(), 60, "")
    subjects = tool.subjects(tool.parse({"command": command}), workspace)
    return judge(
        "bash", subjects, {"bash": "allow"}, mode=mode, place=Place(workspace=str(workspace), home="/home/ann")
    )


@pytest.mark.parametrize("hiding", HIDING)
@pytest.mark.parametrize("command", GUARDED)
def test_a_guarded_command_in_text_that_a_shell_runs_asks(hiding: str, command: str) -> None:
    assert judged(hiding.format(command)).verdict is Verdict.ASK


@pytest.mark.parametrize(
    "command",
    [
        *(
            "x=rm; $x -rf *",
            "x=git; $x reset --hard",
            "$'rm' -rf *",
            "$'\\x72m' -rf *",
            "/bin/r? -rf *",
            "/bin/[r]m -rf *",
        ),
        *("${x}m -rf *", "$x -r .", "a=(rm -rf .); ${a[@]}", "read x <<< rm; $x -rf .", "{rm,-rf,*}"),
        *("find . {-delete,-print}", "find . -d{elete,epth}", "find . $'-delete'", "find . -exec {rm,-rf} {} +"),
        *("git {clean,-fdx}", "git {reset,--hard}", "git reset --h{ard,}", "git push {--force,origin}"),
        *("git $'clean' -fdx", "git push $'--force'", "git {-c,core.pager=x,log}", "rsync {--delete,a/,b/}"),
        *(
            "f=.env; echo x > $f",
            "f=.env; tee $f",
            "f=.git/hooks/x; cp a $f",
            "f=.env; dd if=x of=$f",
            "echo x > $'.env'",
        ),
        *("echo x > $(echo .env)", "sort --o .env x", "sort --out=.env x"),
    ],
)
def test_a_computed_word_does_not_hide_a_guarded_command(command: str) -> None:
    assert judged(command).verdict is Verdict.ASK


@pytest.mark.parametrize("name", ["self", "thread-self", "1", "$$", "*", "self/task/1"])
@pytest.mark.parametrize("rest", ["cwd", "cwd/*", "cwd/", "root/home/ann/work/*", "root/*", "fd/3/*"])
@pytest.mark.parametrize("remove", ["rm -rf {}", "find {} -delete", "rm -r -- {}"])
def test_no_name_of_a_folder_below_proc_hides_it(name: str, rest: str, remove: str) -> None:
    assert judged(remove.format(f"/proc/{name}/{rest}")).verdict is Verdict.ASK


@pytest.mark.parametrize(
    "command",
    [
        *(
            "x=1; echo $x > out.txt",
            "f=out.txt; echo x > $f",
            "for f in *.py; do $PYTHON $f; done",
            "$CC -c x.c -o x.o",
        ),
        *(
            'eval "$(ssh-agent -s)"',
            'eval "$(direnv hook bash)"',
            "source <(kubectl completion bash)",
            ". venv/bin/activate",
        ),
        *("trap 'echo done' EXIT", "echo ${x:-y}", "$'echo' hi", "find . -name '*.{a,b}'", "git add {a,b}.py"),
        *(
            "cp {a,b}.txt docs",
            "git log --format='{%h,%s}'",
            "mkdir -p out/{a,b}",
            "sort --r x",
            "docker run --rm $IMAGE",
        ),
        *("cat /proc/cpuinfo", "cat /proc/self/status", 'tee "$OUT/log.txt" < x'),
    ],
)
def test_other_computed_words_do_not_ask(command: str) -> None:
    assert judged(command).verdict is Verdict.ALLOW


def test_bypass_overrides_the_guard_of_a_hidden_command() -> None:
    assert judged("eval 'git reset --hard'", Mode.BYPASS).verdict is Verdict.ALLOW


@pytest.mark.parametrize(
    "line", ["; ".join(f"$a{number} b" for number in range(900)), "eval " + "git log " * 900, "eval " + "mv a " * 900]
)
def test_a_long_line_takes_no_time(line: str) -> None:
    begun = process_time()
    judged(line)
    assert process_time() - begun < 4  # it takes 0.1 to 1; trying every word as every command took 7 on a fast machine
