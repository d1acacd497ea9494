"""Programs that look harmless run others by their options. No rule that names only such a program allows this."""

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.activities.adapters.shell.options_that_run import RUNS, TAR
from loom.activities.adapters.shell.parser import BashParser
from loom.activities.adapters.shell.wrappers import FORWARDING, RUNNERS, TRANSPARENT
from loom.domain.core.tool_calls import Verdict
from loom.domain.permissions.judge import judge

PARSER = BashParser()


def verdict(command: str, **rules: str) -> Verdict:
    return judge("bash", PARSER.parse(command), rules).verdict


def under_its_own_rule(command: str) -> Verdict:
    """Judge a command under a rule that allows its program."""
    return verdict(command, **{f"bash({command.split(maxsplit=1)[0]}:*)": "allow"})


def spellings(program: str, value: str) -> Iterator[str]:
    """Yield every option of the table with a value, in each way that a program accepts."""
    runs = RUNS[program]
    for option in runs.options.split():
        yield f"{program} {option} {value} x"
        yield f"{program} x {option} {value}"
        if option.startswith("--"):
            yield f"{program} {option}={value}"
            yield f"{program} {option[:-1]}={value}" if len(option) > 4 else f"{program} {option}={value} x"
        elif len(option) == 2:
            yield f"{program} {option}{value}"
            yield f"{program} -q{option[1:]} {value}"
    for start in runs.starts.split():
        yield f"{program} {start}{value}" if start != "+" else f"{program} +run{value}"


PAIRS = [(program, line) for program in RUNS for line in spellings(program, "./evil")]


def test_no_option_of_the_tables_is_allowed_by_a_rule_for_its_program() -> None:
    assert len(PAIRS) > 1500
    assert [line for _, line in PAIRS if under_its_own_rule(line) is Verdict.ALLOW] == []


def test_what_an_option_runs_is_not_hidden_from_a_deny() -> None:
    lines = [line for program in RUNS for line in spellings(program, "'rm y'")]
    assert [line for line in lines if verdict(line, **{"bash": "allow", "bash(rm:*)": "deny"}) is Verdict.ALLOW] == []


@given(st.sampled_from(sorted(RUNS)), st.integers(0, 2**32), st.sampled_from(["f", "-q", "--", "a/b.c", "x=y"]))
def test_an_option_that_runs_is_found_between_other_words(program: str, seed: int, word: str) -> None:
    lines = list(spellings(program, "./evil"))
    if lines and word != "--":
        first, *rest = Random(seed).choice(lines).split()
        assert under_its_own_rule(" ".join([first, word, *rest])) is not Verdict.ALLOW


# The words of programs that aren't options, and options whose value decides.
WORDS = [
    *("tar cI ./evil -f /dev/null x", "tar cIf ./evil /dev/null x", "tar cFf ./evil x a", "tar xIf ./evil x"),
    *("tar cTf list x.tar", "gtar xIf ./evil x", "bsdtar cvIf ./evil x a"),
    *("make test SHELL=./evil", "make test --eval='$(shell id)'", "make SHELL:=./evil", "make 'SHELL ::= ./evil'"),
    *("make -- SHELL=./evil", "make .SHELLFLAGS=x", "make MAKEFLAGS=--eval=x", "make MAKEFILES=x", "make CC=./evil"),
    *("make X!=./evil", "make 'X=$(shell id)'", "make GNUMAKEFLAGS=x", "gmake HOST_CC=./evil", "make -sf evil.mk"),
    *("cmake --build . -- SHELL=./evil", "cmake -DCMAKE_C_COMPILER=./evil .", "cmake -D GIT_EXECUTABLE=./evil ."),
    *("go build -ldflags='-extld=./evil'", "go build -ldflags '-linkmode external -extld ./evil'"),
    *("gcc -B./ -c a.c -o /tmp/o", "gcc @opts -c a.c", "gcc -Wl,@opts a.c", "clang -Xclang -load -Xclang ./e.so a.c"),
    *(
        "wget -e use_askpass=./evil http://127.0.0.1:1/",
        "wget -qe use_askpass=./evil http://h",
        "wget --exec=x http://h",
    ),
    *("scp -S ./evil x y:z", "ssh -o ProxyCommand=./evil x", "sftp -D ./evil", "ssh x -oLocalCommand=./evil"),
    *("ssh -o 'ProxyCommand ./evil' x", "ssh -vo ProxyCommand=./evil x", "ssh -o PROXYCOMMAND=./evil x", "ssh -F c x"),
    *("ssh -o BatchMode=yes -o KnownHostsCommand=./evil x", "sftp -oProxyCommand=./evil h", "ssh -o $x h"),
    *("npm test --script-shell=./evil", "npm config set script-shell ./evil", "npm config set script-shell=./evil"),
    *(
        "sqlite3 x '.shell ./evil'",
        "sqlite3 x '.system ./evil'",
        "sqlite3 x '.once |./evil'",
        "sqlite3 x ' .sh ./evil'",
    ),
    *(
        "sqlite3 x \"select load_extension('./e')\"",
        "sqlite3 x \"select edit('x','./evil')\"",
        "sqlite3 x '.read |./evil'",
    ),
    *(
        "psql -c '\\! ./evil'",
        "psql -c \"copy t to program './evil'\"",
        "psql -o '|./evil'",
        "mysql -e 'system ./evil'",
    ),
    *("sed 'e ./evil' x", "sed 's/a/b/e' x", "sed -n '1e ./evil' x", "sed -e p -e '$!{e ./evil' -e '}' x"),
    *("awk 'BEGIN{system(\"./evil\")}'", "awk 'BEGIN{\"./evil\"|getline}'", "awk '{print|\"./evil\"}' x"),
    *(
        "vim -c '!./evil'",
        "vim '+!./evil' x",
        "less '+!./evil' x",
        "ed '!./evil'",
        "dc -e '!./evil'",
        "more '+!./evil' x",
    ),
    *("socat EXEC:./evil -", "socat - system:./evil", "sox '|./evil' x", "convert msl:evil x", "pandoc -t evil.lua x"),
    *("make $x", "gcc $(cat opts)", "x='SHELL=./evil'; make $x", "tar {cIf,./evil,x}", "make SHEL{L=./evil,x}"),
    *("sed 1eid x", "sed s_a_id_ep x", "sed saaidae x", "sed '\\cxce id' x", "sed -ne1 -ee x", "sed 'p;e id' x"),
    *("sed -e 'a\\' -e 's/x\ne id\n/y/' x", 'sed "s/a/$x/" f', 'sed "1e id$HOME" x', "awk -W exec x", "gawk '@f(1)'"),
    *("tar -C -- -I ./evil x", "sort -o -- --compress-program=id", "gcc -o -- -wrapper id x", "ssh -l -- -F c x"),
    *("less -~k x", "curl -#K x", "zip -qTT id x", "ssh -Fo BatchMode=yes x", "vim --CMD id x", "emacs -script x"),
    *("nano -A/s id x", "curl -s:K x", "ssh -4F c x", "ssh -J 'x$(id)' h", "ssh -4J$x h"),
    *('tar "c$x" id', 'make "SH$x"', 'make "SHELL=$HOME/x"', 'ed "!id $HOME"', "sqlite3 x '. shell id'"),
    *("sqlite3 x '.\"shell\" id'", "mysql '-esystem id'", "COLUMNS=-Iid; tar ${COLUMNS} x", "gcc-12 -B./ x"),
    *("x86_64-linux-gnu-gcc-12 -wrapper id x", "vim.basic -c id x", "lcov --criteria-script id"),
    *(
        'make "$x"',
        "wget *",
        "curl {-K,x}",
        "ssh '-'$x h",
        "make ${X:-SHELL=./evil}",
        "LANG=-fx; make $LANG",
    ),
]


@pytest.mark.parametrize("command", WORDS)
def test_a_word_that_runs_something_is_not_allowed_by_a_rule_for_its_program(command: str) -> None:
    program = next((word for word in command.split() if word in RUNS), command.split(maxsplit=1)[0])
    rules = {f"bash({program}:*)": "allow", "bash(cat:*)": "allow"}
    assert verdict(command, **rules) is Verdict.ASK


HARMLESS = [
    *(
        "make",
        "make test",
        "make -C docs html",
        "make -j4 DESTDIR=/tmp/x install",
        "make V=1 PREFIX=/usr",
        "make -k -n all",
    ),
    *("tar czf x.tgz d", "tar xf x.tar", "tar -xzvf x.tgz -C d", "tar tvf x", "tar --exclude=.git -cf x.tar ."),
    *("gcc -O2 -o a a.c", "gcc -Wall -DBIG -DDEBUG=1 -Iinclude -Llib -lBlas a.c", "g++ -std=c++20 -fPIC -shared a.cc"),
    *("wget https://h/x", "wget -qO- https://h/x", "wget -c -nv -P d https://h/x", "curl -sSfL https://h/x -o y"),
    *("ssh h ls", "ssh -p 22 -i key u@h uptime", "ssh -o StrictHostKeyChecking=no -o ConnectTimeout=5 h ls"),
    *(
        "ssh -oBatchMode=yes -J jump h ls",
        "ssh -L80:host:80 -N h",
        "ssh -vJ u@jump:22 h",
        "scp -r -P 22 x h:y",
        "scp -o UserKnownHostsFile=/dev/null x h:y",
        "sftp h",
    ),
    *(
        "npm test",
        "npm ci",
        "npm run build",
        "npm install --save-dev x",
        "yarn install --frozen-lockfile",
        "pnpm build",
    ),
    *(
        "sqlite3 x.db 'select * from t'",
        "sqlite3 x.db .tables",
        "sqlite3 -header -csv x.db 'select 1'",
        "sqlite3 x .schema",
    ),
    *("psql -U u -d d -c 'select 1'", "mysql -u root -e 'show tables'", "redis-cli ping", "go test -run X ./..."),
    *("go build -o bin/x ./cmd/x", "go vet ./...", "cargo build --release", "cargo test", "rustc --edition 2021 a.rs"),
    *(
        "pytest -q tests -k x -x",
        "pytest --cov=x",
        "tox -e py311",
        "pip install -r requirements.txt",
        "pip install -e .",
    ),
    *("mypy --strict src", "ruff check .", "black --check .", "flake8 src", "flask --app x run", "celery -A x worker"),
    *(
        "cmake -DCMAKE_BUILD_TYPE=Release ..",
        "cmake --build build -j4",
        "cmake -B build -G Ninja",
        "ninja -C build test",
    ),
    *(
        "sed -n '/a/,$!{=;p}' x",
        "sed '1i e id' x",
        "sed ':a;N;$!ba;s/e/e/g' x",
        "sed -E 's_(e)_\\1_2' e",
        "sed y/e/f/ e",
    ),
    *("sed -n 1,5p x", "sed -i s/a/b/g x", "sed -e 's/the/x/' -e /re/d x", "awk '{print $1}' x", "awk -F: '$3 > 9' x"),
    *("docker ps -a", "docker build -t x .", "docker run --rm x ls", "kubectl get pods -o wide", "helm list -A"),
    *(
        "vim +12 x",
        "less +F x",
        "sort -u x",
        "rg -n x src",
        "man ls",
        "jq -r .a x",
        "openssl rand -hex 8",
        "gpg --verify x",
    ),
    *(
        "make $TARGET",
        "curl -H \"A: $TOKEN\" 'https://h/'$ID",
        'gcc "src/$x.c" -o a',
        "tar xf v${V#v}.tgz",
    ),
]


@pytest.mark.parametrize("command", HARMLESS)
def test_everyday_options_are_allowed_by_a_rule_for_the_program(command: str) -> None:
    assert verdict(command, **{f"bash({command.split(maxsplit=1)[0]}:*)": "allow"}) is Verdict.ALLOW


STARTS = {"choom": "-n 0", "timeout": "1", "gtimeout": "1", "flock": "x", "chroot": ".", "find": ". -exec"}
NEVER = {"find", "time", "ld.so"}


def test_a_deny_is_heard_behind_every_runner() -> None:
    runners = (RUNNERS.keys() | FORWARDING.keys() | TRANSPARENT.keys()) - NEVER
    commands = [
        f"{runner} {STARTS.get(runner, '')} {'x rm y' if runner in FORWARDING else 'rm y'}"
        for runner in sorted(runners)
    ]
    rules = {"bash": "allow", "bash(rm:*)": "deny"}
    assert [command for command in commands if verdict(command, **rules) is Verdict.ALLOW] == []


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        ("choom -n 0 rm y", "rm y"),
        ("ssh -o ProxyCommand='rm y' h", "rm y"),
        ("make test --eval='x:;rm y'", "rm y"),
        ("sqlite3 x '.shell rm y'", "rm y"),
        ("python3 -c 'import os; os.system(\"rm y\")'", "rm y"),
        ("pwsh -c 'rm y'", "rm y"),
    ],
)
def test_an_approval_names_what_an_option_may_run(command: str, cause: str) -> None:
    judged = judge("bash", PARSER.parse(command), {"bash": "allow", "bash(rm:*)": "deny"})
    assert judged.verdict is not Verdict.ALLOW
    assert "bash(rm:*)" in judged.reason
    assert any(cause in subject.text for subject in PARSER.parse(command))


def test_the_tables_name_the_same_programs_as_tar() -> None:
    assert RUNS.keys() >= TAR
