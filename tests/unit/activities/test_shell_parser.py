"""What the shell parser sees in a command, and what permission rules make of it."""

import shlex
import subprocess
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.activities.adapters.shell.parser import LONGEST, BashParser
from loom.activities.toolbox.built_in.shell import grants_of
from loom.domain.core.tool_calls import Verdict
from loom.domain.permissions.judge import Mode, judge
from loom.testing.waiting import PATIENCE

PARSER = BashParser()


def texts(command: str) -> list[str]:
    return list(dict.fromkeys(subject.text for subject in PARSER.parse(command) if not subject.passive))


def is_opaque(command: str) -> bool:
    return any(subject.opaque for subject in PARSER.parse(command))


def verdict(command: str, **rules: str) -> Verdict:
    return judge("bash", PARSER.parse(command), {"bash": "ask", **rules}).verdict


@pytest.mark.parametrize(
    ("command", "seen"),
    [
        ("ls -la", ["ls -la"]),
        ("  ls \t -la  ", ["ls -la"]),
        ("ls \\\n -la", ["ls -la"]),
        ("a && b || c; d | e |& f & g\nh", ["a", "b", "c", "d", "e", "f", "g", "h"]),
        ("(a; b) && { c; }", ["a", "b", "c"]),
        ("echo $(a) `b` <(c) >(d)", ["echo $(a) `b` <(c) >(d)", "a", "b", "c", "d"]),
        ('echo "x $(a) y" ${v:-b}', ['echo "x $(a) y" ${v:-b}', "a"]),
        ("if a; then b; elif c; then d; else e; fi", ["a", "b", "c", "d", "e"]),
        ("for i in $(a); do b $i; done", ["a", "b $i"]),
        ("while a; do b; done; until c; do d; done", ["a", "b", "c", "d"]),
        ("case $(a) in x) b;; *) c;; esac", ["a", "b", "c"]),
        ("! a", ["a"]),
        ("X=$(a)", ["X=$(a)", "a"]),
        ("x=$(a); b $x", ["a", "b $x"]),
        ("export x=$(a)", ["export x=$(a)", "a"]),
        ("[ -f x ] && a", ["[ -f x ]", "a"]),
        ("cat <<'EOF'\n$(a)\nEOF\nb", ["cat", "b"]),
        ("git 2>&1 push --force", ["git push --force"]),
        ("a | b 2>/dev/null c", ["a", "b c"]),
        ("# nothing", []),
        ("", []),
    ],
)
def test_every_command_is_seen_wherever_it_stands(command: str, seen: list[str]) -> None:
    assert texts(command) == seen
    assert not is_opaque(command)


@pytest.mark.parametrize(
    ("command", "seen"),
    [
        ("timeout 30 npm test", ["npm test"]),
        ("timeout -k 5 --signal=KILL 30 npm test", ["npm test"]),
        ("time -p nice -n 5 nohup a &", ["a"]),
        ("stdbuf -oL a", ["a"]),
        ("command a", ["a"]),
        ("command -v a", ["command -v a"]),
        ("ls | xargs rm -f", ["ls", "rm -f {}"]),
        ("xargs -0 -n1 rm", ["xargs -0 -n1 rm", "rm {}"]),
        ("xargs -I@ rm @", ["xargs -I@ rm @", "rm @"]),
        ("sudo -u root rm x", ["sudo -u root rm x", "rm x"]),
        ("env LANG=C rm x", ["env LANG=C rm x", "rm x"]),
        ("env A=1 rm x", ["env A=1 rm x", "A=1 rm x"]),
        ("find . -exec rm {} + -print", ["find . -exec rm {} + -print", "rm {}"]),
        ("bash -c 'a && b'", ["a", "b"]),
        ('sh -ec "bash -c a"', ["a"]),
        ("bash -lc a", ["bash -lc a", "a"]),
        ("bash script.sh", ["bash script.sh"]),
    ],
)
def test_what_a_wrapper_runs_is_seen_too(command: str, seen: list[str]) -> None:
    assert texts(command) == seen
    assert not is_opaque(command)


@pytest.mark.parametrize(
    "command",
    [
        "$X foo",
        "$(ls)",
        "r{m,} x",
        "rm$IFS x",
        "eval 'rm x'",
        "trap 'rm x' EXIT",
        "alias ls=rm",
        "echo rm | bash",
        "bash <<< 'rm x'",
        'bash -c "rm $X"',
        "env -S 'rm x'",
        "find . -delete",
        "timeout --unknown 5 rm x",
        "time PATH=. ls",
        "time { rm x; }",
        "coproc { rm x; }",
        "echo 'unterminated",
        "echo ok)",
        "a" * (LONGEST + 1),
        "r\\\nm x",
        "ls\frm",
        "ls\r\nrm x",
        "echo > $F",
        # What Bash reads otherwise than the syntax tree:
        "ls =~ | rm x",
        "ls == | rm x",
        "ls\n\\\nrm x",
        "~\n\\rm x",
        "\\ ls",
        "cat <<E\n $(rm x)\nE",
        "cat <<E\n`rm x`\nE",
        "ls $(cat <<E\nq\nE)\nrm x\nE\n)",
        "ls;-x2>&1[[",
        "?X=$(ls) rm",
        "ls <<E | cat <<'E'\n$(rm x)\nE\nq\nE",
        "X=\\\n rm x",
    ],
)
def test_what_cannot_be_seen_into_is_opaque(command: str) -> None:
    assert is_opaque(command)
    assert verdict(command, **{"bash(*)": "allow"}) is Verdict.ASK


EVALUATED = [
    "ls ${PATH#$(id)}",
    "ls \"${x:-'$(id)'}\"",
    "ls ${x^^`id`}",
    "ls ${x#<(id)}",
    "ls ${x:$[a[$(id)]]}",
    "ls ${_@P}",
    "ls ${!x}",
    "ls ${x:=y}",
    "ls ${a[$(id)]}",
    "ls $((_))",
    "ls $((PATH=5)); ls",
    "ls $[_]",
    'ls $"x"',
    "printf -v PATH x",
    "printf '%n' PATH",
    "printf $x",
    "test -v 'a[$(id)]'",
    "[ $x = y ]",
    "[ -R x -o -v 'a[$(id)]' ]",
    "[[ 'a[$(id)]' -eq 0 ]]",
    "[[ -v a[0] ]]",
    "read PATH",
    'read "$x"',
    "bash 0<<< ls",
    "env BASH_ENV=f bash -c ls",
    "read 'a[$(id)]'",
    "mapfile -C id x",
    "compgen -C id",
    "fc -s id",
    "let x=1",
    "declare -i x=y",
    "export PATH=.",
    "PS4='$(id)'",
    "wait -n -p PATH",
    "getopts a PATH",
    "unset 'a[$(id)]'",
    "set -k",
    "shopt -s extglob",
    "for PATH in 10; do ls; done",
    "select x in a; do ls; done",
    "exec {PATH}> f",
    "ls {PATH}>/dev/null",
    "BASH_ALIASES[ls]=id",
    "x=(['a[$(id)]']=1)",
    "ls() { cat; }",
    "(( x ))",
    "x=$ id",
    "find y {-exec,id,\\;}",
    "find * -name x",
    'find "$x"',
    "sort --compress=id x",
    "rg --pre id x",
    "xargs -I{} {} x",
    "sh -c \"echo \\$'\\\\'; id #'\"",
    "bash -O extglob -c ls",
    "source /dev/stdin",
    "cat < /dev/tcp/localhost/80",
]


@pytest.mark.parametrize("command", EVALUATED)
def test_what_bash_evaluates_assigns_or_computes_is_opaque(command: str) -> None:
    (first, *_) = [subject for subject in PARSER.parse(command) if subject.opaque]
    assert first.cause
    assert verdict(command, **{"bash(*)": "allow"}) is Verdict.ASK


@pytest.mark.parametrize(
    "command",
    [
        'ls -la $HOME "$x" *.py {a,b}/c ~/x',
        'ls ${x:-a} "${x%.c}" ${#x} ${x/a/b} ${x:0:3} ${x,,} $((1 + 2)) $? "${a[@]}"',
        "ls $'a\\tb' <(ls) \"$(ls)\" `ls`",
        'for x in *.py; do ls "$x"; done',
        "while read -r line; do ls; done < f",
        'if [ -f x ] && ! [ "$a" = b ]; then ls; fi',
        "if [[ -f x && $a == b* ]]; then ls; fi",
        "case $x in a|b*) ls;; *) ls -l;; esac",
        "set -euo pipefail; ls",
        "printf '%s\\n' \"$x\"",
        "x=$(ls); xs=(a b); ls $x",
        "export x=1; ls",
        "IFS= read -r x",
        "find . -name '*.py' -exec ls {} +",
        "find . -name *.py",
        "bash -euo pipefail -c 'ls'",
        "cat <<'E'\n$(id)\nE",
    ],
)
def test_what_only_computes_an_argument_is_allowed_with_its_program(command: str) -> None:
    programs = ("ls", "[", "[[", "set", "printf", "export", "read", "find", "cat")
    assert verdict(command, **{f"bash({program}:*)": "allow" for program in programs}) is Verdict.ALLOW


@pytest.mark.parametrize("command", ["> out", "echo a > out", "a >> out", "a &> out", "a >| out", "(a; b) > out"])
def test_a_file_that_is_written_to_is_a_part_of_its_own(command: str) -> None:
    assert any(text.endswith("out") and text.startswith((">", "&>")) for text in texts(command))
    assert verdict(command, **{"bash(echo:*)": "allow", "bash(a)": "allow", "bash(b)": "allow"}) is Verdict.ASK


@pytest.mark.parametrize("command", ["ls 2>/dev/null", "ls > /dev/null 2>&1", "ls >&2", "ls < in", "ls 2>&-"])
def test_throwing_output_away_writes_nothing(command: str) -> None:
    assert texts(command) == ["ls"]


VECTORS = [
    ("bash(ls *)", "ls -la", True),
    ("bash(ls *)", "lsof", False),
    ("bash(safe *)", "safe && other", False),
    ("bash(npm test *)", "timeout 30 npm test", True),
    ("bash(npm test *)", "NODE_ENV=test npm test", True),
    ("bash(npm test *)", "X=1 npm test", False),
    ("bash(npm test *)", "npm test | tee log", False),
    ("bash(npm test *)", "npx npm test", False),
    ("bash(watch *)", "watch rm x", False),
    ("bash(find *)", "find . -name x", True),
    ("bash(find *)", "find . -exec rm {} ;", False),
    ("bash(find *)", "find . -delete", False),
    ("bash(ls *)", "PATH=. ls", False),
    ("bash(ls *)", "PATH=.; ls", False),
    ("bash(ls *)", "LD_PRELOAD=x.so ls", False),
]


@pytest.mark.parametrize(("rule", "command", "is_allowed"), VECTORS)
def test_an_allow_covers_what_it_says_and_no_more(rule: str, command: str, is_allowed: bool) -> None:
    assert (verdict(command, **{rule: "allow"}) is Verdict.ALLOW) is is_allowed


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf x",
        "FOO=bar rm -rf x",
        "ls; rm x",
        "ls | xargs rm",
        "/bin/rm x",
        '"rm" x',
        "r\\m x",
        "sudo rm x",
        "env A=1 rm x",
        "bash -c 'ls; rm x'",
        "find . -exec rm {} +",
        "echo $(rm x)",
        "nohup rm x &",
        "if true; then rm x; fi",
        "rm 2>&1 -rf x",
    ],
)
def test_a_deny_finds_its_command_in_every_disguise(command: str) -> None:
    assert verdict(command, **{"bash": "allow", "bash(rm:*)": "deny"}) is Verdict.DENY


RUNNERS = [
    "bash -euo pipefail -c {script}",
    "bash -O extglob -c {script}",
    "bash -c -- {script}",
    "bash +x -c {script}",
    "bash --norc -lc {script}",
    "zsh -c {script}",
    "bash <<< {script}",
    "bash -s <<< {script}",
    "bash /dev/stdin <<< {script}",
    "bash <<'E'\n{command}\nE",
    "echo {script} | sh",
    "eval {script}",
    "trap {script} EXIT",
    "env -S {script}",
    "env -S{script}",
    "env --split-string={script}",
    "env a.b=1 {command}",
    "env - {command}",
    "/usr/bin/env -u X {command}",
    "flock f -c {script}",
    "flock -n f {command}",
    "setarch x86_64 -R {command}",
    "linux64 {command}",
    "setpriv --reuid=1 {command}",
    "prlimit {command}",
    "script -qc {script} /dev/null",
    "su -c {script}",
    "watch {script}",
    "strace -f -e open {command}",
    "/lib64/ld-linux-x86-64.so.2 /bin/{command}",
    "systemd-run --user {command}",
    "busybox {command}",
    "faketime 2020-01-01 {command}",
    "chronic {command}",
    "coproc {command}",
    "timeout -s KILL 5 {command}",
    "find . -exec {command} {{}} +",
    "find . -exec env -u + {command} \\;",
    "ls | xargs -n1 {command}",
    "ls | parallel {command}",
    "echo `echo \\`{command}\\``",
    "echo $(echo $({command}))",
]


@given(st.sampled_from(RUNNERS), st.sampled_from(RUNNERS), st.sampled_from(["rm x", "/bin/rm -rf x", "'rm' x"]))
def test_a_deny_sees_through_runners_in_runners(outer: str, inner: str, command: str) -> None:
    def run_by(runner: str, command: str) -> str:
        return runner.format(script=shlex.quote(command), command=command)

    once, nested = run_by(outer, command), run_by(outer, run_by(inner, command))
    rules = {"bash": "allow", "bash(rm:*)": "deny"}
    assert verdict(once, **rules) is Verdict.DENY, once
    if "|" in inner and "{script}" not in outer:
        return  # the outer runner ends before the pipe, and never runs the command
    assert verdict(nested, **rules) is not Verdict.ALLOW, nested


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        ("bash <(ls)", "<(ls)"),
        ("$x y", "$x"),
        ("sudo --unknown rm x", "--unknown"),
        ("ls ${x@P}", "${x@P}"),
        ("uv run rm x", "uv"),
        ("EDITOR='rm x' git commit", "EDITOR"),
        ("PAGER=$x man ls", "PAGER"),
    ],
)
def test_what_a_deny_may_reach_is_an_ask_that_says_why(command: str, cause: str) -> None:
    judged = judge("bash", PARSER.parse(command), {"bash": "allow", "bash(rm:*)": "deny"})
    assert judged.verdict is Verdict.ASK
    assert judged.reason.endswith(f"because of {cause}")


@pytest.mark.parametrize(
    ("rule", "command", "decided"),
    [
        ("bash(git push:*)", "git $x", Verdict.ASK),
        ("bash(git push:*)", "git {push,-f}", Verdict.ASK),
        ("bash(git push:*)", "git status $x", Verdict.ALLOW),
        ("bash(rm -rf:*)", "rm $x", Verdict.ASK),
        ("bash(*--force*)", "ls $x", Verdict.ASK),
        ("bash(rm:*)", "ls $x", Verdict.ALLOW),
    ],
)
def test_a_computed_word_may_be_what_a_deny_names(rule: str, command: str, decided: Verdict) -> None:
    judged = judge("bash", PARSER.parse(command), {"bash": "allow", rule: "deny"}, mode=Mode.DEFAULT)
    assert (Verdict.ASK if judged.rule.startswith("guard") else judged.verdict) is decided


@pytest.mark.parametrize("command", ["xargs ls", "xargs -n1 ls", "ls $x"])
def test_an_exact_rule_covers_no_arguments_from_elsewhere(command: str) -> None:
    assert verdict(command, **{"bash(ls)": "allow", "bash(ls $x)": "allow", "bash(xargs:*)": "allow"}) is Verdict.ASK


@pytest.mark.parametrize(
    "command",
    [
        "a | " * 2400 + "b",
        "(" * 4000 + "a" + ")" * 4000,
        "a $(" * 1900 + "b" + ")" * 1900,
        "sudo " * 1900 + "b",
        "time " * 1900,
    ],
)
def test_long_and_deep_commands_are_read_all_the_same(command: str) -> None:
    assert PARSER.parse(command)


def test_a_deny_of_a_wrapper_or_a_shell_is_heard() -> None:
    assert verdict("bash -c ls", **{"bash": "allow", "bash(bash:*)": "deny"}) is Verdict.DENY
    assert verdict("nohup ls", **{"bash": "allow", "bash(nohup:*)": "deny"}) is Verdict.DENY


JOINTS = [
    "{a} && {b}",
    "{a} || {b}",
    "{a}; {b}",
    "{a} | {b}",
    "{a} & {b}",
    "{a}\n{b}",
    "({a}; {b})",
    "{{ {a}; {b}; }}",
    "{a} $({b})",
    '{a} "`{b}`"',
    "{a} <({b})",
    "if {a}; then {b}; fi",
    "bash -c '{a}; {b}'",
    "{a} | xargs {b}",
    "f() {{ {b}; }}; {a}",
    "X=$({b}) {a}",
    "timeout 5 {a} && nice {b}",
    "{a} <<E\n$({b})\nE",
    "{a} # {a}\n{b}",
    "{a} 2>&1 x; {b}",
]


@given(st.sampled_from(JOINTS), st.sampled_from(JOINTS), st.sampled_from(["rm x", "curl y", "X=1 ls", "$Z", "> f"]))
def test_no_compound_of_an_allowed_and_another_command_is_allowed(outer: str, inner: str, other: str) -> None:
    rules = {"bash(ls:*)": "allow", "bash(f)": "allow"}
    for command in (
        outer.format(a="ls", b=inner.format(a="ls", b=other)),
        outer.format(a=inner.format(a=other, b="ls"), b="ls"),
    ):
        assert verdict(command, **rules) is not Verdict.ALLOW, command


TOKENS = [
    "aa",
    "bb",
    "cc",
    *" " * 6,
    "\n",
    ";",
    "&&",
    "|",
    "(",
    ")",
    "{ ",
    "; }",
    "$(",
    "`",
    '"',
    "'",
    "\\\n",
    "\\",
    "> f",
]
TOKENS += [
    "2>&1",
    "<<E\n",
    "\nE\n",
    "<<<",
    "if ",
    "; then ",
    "; fi",
    "! ",
    "X=1 ",
    "#",
    "((",
    "))",
    " =~ ",
    " == ",
    "$'",
    "{a,b}",
]


def test_bash_runs_nothing_that_the_parser_did_not_see(tmp_path: Path) -> None:
    random = Random(20)
    compared = 0
    for number in range(2500):
        command = "".join(random.choice(TOKENS) for _ in range(random.randint(2, 12)))
        seen = PARSER.parse(command)
        if any(subject.opaque for subject in seen):
            continue
        ran = _names_run_by_bash(command, tmp_path / str(number))
        written = [text for subject in seen for text in (subject.text, subject.loose)]
        assert all(any(text == name or text.startswith(name + " ") for text in written) for name in ran), command
        compared += bool(ran)
    assert compared > 50  # the parser understands few of these commands, and Bash runs nothing in many of those


def _names_run_by_bash(command: str, log: Path) -> set[str]:
    """There is no program on the path, so Bash calls the handler with every name that it would run."""
    log.touch()
    handler = '() { printf "%s\\0" "$1" >>"$LOG"; }'
    environment = {"PATH": "/nowhere", "LOG": str(log), "BASH_FUNC_command_not_found_handle%%": handler}
    subprocess.run(
        ["/bin/bash", "-c", command],
        cwd=log.parent,
        env=environment,
        timeout=PATIENCE,
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return set(log.read_text(errors="replace").split("\0")) - {""}


@pytest.mark.parametrize(
    "command",
    [
        "./bash -c ls",
        "/tmp/x/sh -c ls",
        "./timeout 5 ls",
        "timeout 5 ./xargs ls",
        "node_modules/.bin/nice ls",
        "./xargs ls",
    ],
)
def test_a_program_of_the_workspace_is_no_wrapper_even_if_it_is_named_like_one(command: str) -> None:
    assert judge("bash", PARSER.parse(command), {"bash(ls:*)": "allow"}).verdict is Verdict.ASK


@pytest.mark.parametrize("wrapper", ["timeout 5", "/usr/bin/timeout 5", "bash -c", "/bin/bash -c"])
def test_a_wrapper_of_the_system_needs_no_rule(wrapper: str) -> None:
    assert judge("bash", PARSER.parse(f"{wrapper} ls"), {"bash(ls:*)": "allow"}).verdict is Verdict.ALLOW


@pytest.mark.parametrize(
    "command",
    ["python3 <<'E'\nprint(1)\nE", "cat a.py | python3", "python3 < a.py", "python3 <<< 1", "cat <<E | python3\nx\nE"],
)
def test_approving_a_command_approves_nothing_that_may_feed_it_later(command: str) -> None:
    assert grants_of(PARSER.parse(command)) == ()
    assert (
        judge("bash", PARSER.parse(command), {"bash(cat:*)": "allow"}, grants=["bash(python3)"]).verdict is Verdict.ASK
    )
    assert judge("bash", PARSER.parse("python3"), {}, grants=["bash(python3)"]).verdict is Verdict.ALLOW
