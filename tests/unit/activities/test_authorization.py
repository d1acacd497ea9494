"""Rules and real tools in a real folder: what a run's calls are judged to be, and what an approval would grant."""

from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.activities.adapters.shell.parser import BashParser
from loom.activities.ports import MAX_GRANTS, Tool
from loom.activities.toolbox.built_in.all_tools import built_in_tools
from loom.activities.toolbox.built_in.http_fetch import http_fetch_tool
from loom.activities.toolbox.pipeline import Authorized, authorize
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.messages import ToolCall
from loom.domain.core.tool_calls import Verdict
from loom.domain.permissions.judge import Mode

ALLOW, ASK, DENY = Verdict.ALLOW, Verdict.ASK, Verdict.DENY


class Offline:
    """No test here fetches anything."""

    async def fetch(self, *_: object) -> NoReturn:
        raise AssertionError

    async def read(self, *_: object) -> NoReturn:
        raise AssertionError


BOX: dict[str, Tool] = built_in_tools(
    sandbox=None, shell_parser=BashParser(), tool_timeout=120, others=[http_fetch_tool(Offline(), Offline(), 60)]
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with folders, a secret and links to it."""
    root = tmp_path_factory.mktemp("place").resolve() / "here"
    for folder in ("src/deep", "lib/src", "secrets"):
        (root / folder).mkdir(parents=True)
    for file in (".env", "src/a.py", "lib/src/b.py", "secrets/key", "notes.txt"):
        (root / file).write_text("x")
    (root / "link.txt").symlink_to(".env")
    (root / "linked").symlink_to("secrets")
    return root


def authorized(
    place: Path, rules: dict[str, str], name: str, *grants: str, mode: str = "", **given: object
) -> Authorized:
    spec = AgentSpec(
        name="a",
        model="demo",
        tools=tuple(tool.spec for tool in BOX.values()),
        permissions=rules,
        mode=Mode(mode or "default"),
        workspace=str(place),
    )
    tool = BOX[name]
    arguments = tool.parse(given)
    return authorize(ToolCall(id="c", name=name, arguments=given), tool, arguments, spec, grants)


def bash(place: Path, command: str, rules: dict[str, str], *grants: str, mode: str = "") -> Verdict:
    return authorized(place, rules, "bash", *grants, mode=mode, command=command).judgement.verdict


def offer(made: Authorized, name: str, **given: object) -> tuple[str, ...]:
    return made.grants(BOX[name], BOX[name].parse(given))


SHELL_VECTORS = [
    ({"bash(ls *)": "allow"}, "ls -la", ALLOW),
    ({"bash(ls *)": "allow"}, "lsof", ASK),
    ({"bash(safe *)": "allow"}, "safe && other", ASK),
    ({"bash(safe *)": "allow"}, "safe && safe x", ALLOW),
    ({"bash": "allow", "bash(rm *)": "deny"}, "FOO=bar rm -rf x", DENY),
    ({"bash(npm test *)": "allow"}, "timeout 30 npm test", ALLOW),
    ({"bash(npm test *)": "allow"}, "NODE_ENV=test npm test", ALLOW),
    ({"bash(npm test *)": "allow"}, "X=1 npm test", ASK),
    ({"bash(aws *)": "deny", "bash(aws s3 ls)": "allow"}, "aws s3 ls", DENY),
    ({"bash(git *)": "allow"}, "git status\ngit log", ALLOW),
    ({"bash(git *)": "allow"}, "git status\ncurl x", ASK),
    ({"bash(ls:*)": "allow"}, "ls | xargs ls", ALLOW),
    ({"bash(npx *)": "ask", "bash(eslint *)": "allow"}, "npx eslint x", ASK),
    ({"bash(docker exec *)": "ask", "bash(ls *)": "allow"}, "docker exec c ls", ASK),
    ({"bash(ls *)": "allow"}, "watch ls", ASK),
    ({"bash(ls *)": "allow"}, "setsid ls", ASK),
    ({"bash(find *)": "allow"}, "find . -delete", ASK),
    ({"bash(find *)": "allow"}, "find . -exec rm {} +", ASK),
    ({"bash(*)": "allow"}, "echo 'unfinished", ASK),
    ({"bash(*)": "allow"}, "a" * 10_001, ASK),
    ({"bash(timeout:600)": "deny", "bash": "allow"}, "ls", ALLOW),
]


@pytest.mark.parametrize(("rules", "command", "verdict"), SHELL_VECTORS)
def test_shell_rules_mean_what_practice_says(
    place: Path, rules: dict[str, str], command: str, verdict: Verdict
) -> None:
    assert bash(place, command, rules) is verdict


@pytest.mark.parametrize(
    ("rule", "url", "matches"),
    [
        ("domain:example.*", "https://example.org/x", True),
        ("domain:example.*", "https://example.evil.com/", False),
        ("domain:*.x.com", "https://a.b.x.com:8443/", True),
        ("domain:*.x.com", "https://x.com/", False),
        ("domain:X.com", "HTTP://x.COM./", True),
        ("domain:x.com", "https://x.com.evil.org/", False),
    ],
)
def test_hosts_are_matched_by_label(place: Path, rule: str, url: str, matches: bool) -> None:
    allowed = authorized(place, {f"http_fetch({rule})": "allow"}, "http_fetch", url=url)
    denied = authorized(place, {f"http_fetch({rule})": "deny"}, "http_fetch", mode="bypass", url=url)
    assert (allowed.judgement.verdict, denied.judgement.verdict) == ((ALLOW, DENY) if matches else (ASK, ALLOW))


def test_an_argument_is_held_against_its_validated_value(place: Path) -> None:
    for spelled in (600, 600.0, "600", "6e2", " 600 "):
        made = authorized(place, {"bash": "allow", "bash(timeout:600)": "deny"}, "bash", command="ls", timeout=spelled)
        assert made.judgement.rule == "bash(timeout:600)"


@pytest.mark.parametrize(
    ("path", "allow", "deny"),
    [
        ("src/a.py", ALLOW, DENY),
        ("lib/src/b.py", ASK, DENY),
        ("notes.txt", ASK, ALLOW),
        ("./src/../src/a.py", ALLOW, DENY),
    ],
)
def test_a_folder_is_allowed_below_the_workspace_and_denied_at_any_depth(
    place: Path, path: str, allow: Verdict, deny: Verdict
) -> None:
    allowed = authorized(place, {"read_file": "ask", "read_file(src/**)": "allow"}, "read_file", path=path)
    denied = authorized(place, {"read_file(src/**)": "deny"}, "read_file", path=path)
    assert (allowed.judgement.verdict, denied.judgement.verdict) == (allow, deny)


def test_a_link_is_allowed_only_with_its_target_and_denied_with_either(place: Path) -> None:
    rules = {"read_file": "ask", "read_file(link.txt)": "allow"}
    assert authorized(place, rules, "read_file", path="link.txt").judgement.verdict is ASK
    both = authorized(place, {**rules, "read_file(.env)": "allow"}, "read_file", path="link.txt")
    assert both.judgement.verdict is ALLOW
    for denied in ("link.txt", ".env", "//" + str(place / ".env")[1:]):
        assert (
            authorized(place, {f"read_file({denied})": "deny"}, "read_file", path="link.txt").judgement.verdict is DENY
        )


@pytest.mark.parametrize(
    "command",
    [
        "cat .env",
        "cat < .env",
        "head -n 1 ./.env",
        "tail -f src/../.env",
        "sed -n p .env",
        "sed -e p .env",
        "grep -i key .env",
        "awk '{print}' .env",
        "base64 '.env'",
        "cp .env other",
        "mv .env other",
        "dd if=.env of=x",
        "cat link.txt",
        "sudo cat .env",
        "timeout 5 cat .env",
        "bash -c 'cat .env'",
        "ls; (cat .env)",
        "echo $(cat .env)",
        "cat linked/../.env",
        "cd src && cat ../.env",
        "sort --files0-from=.env",
        "source .env",
        "tee -a x < .env",
        "diff notes.txt .env",
        "X=1 cat .env",
        "find . -exec cat .env ';'",
        "tar c .env",
        "vim .env",
        "curl -d @.env x",
    ],
)
def test_who_denies_reading_a_file_denies_the_commands_that_read_it(place: Path, command: str) -> None:
    assert bash(place, command, {"bash": "allow", "read_file(.env)": "deny"}, mode="bypass") is DENY
    assert bash(place, command, {"bash(*)": "allow", "read_file(.env)": "ask"}) is ASK
    assert bash(place, command, {"bash": "deny", "read_file(.env)": "allow"}) is DENY


@pytest.mark.parametrize("command", ["cat notes.txt", "ls .env", "echo .env", "grep .env notes.txt", "cat src/a.py"])
def test_commands_that_read_something_else_go_by_their_own_rules(place: Path, command: str) -> None:
    assert bash(place, command, {"bash": "allow", "read_file(.env)": "deny"}) is ALLOW


@pytest.mark.parametrize(
    "command",
    [
        "cat $FILE",
        "cat *",
        "cat $(ls)",
        'cat "$X/.env"',
        "cd $X && cat key",
        "cat .en?",
        "grep -r x .",
        "rg x",
        "ls | xargs cat",
    ],
)
def test_what_file_a_command_reads_is_asked_where_nobody_can_tell(place: Path, command: str) -> None:
    assert bash(place, command, {"bash": "allow", "read_file(.env)": "deny"}) is ASK
    assert bash(place, command, {"bash": "allow"}) is ALLOW


@pytest.mark.parametrize(
    "command",
    [
        "echo x > secrets/key",
        "echo x >> ./secrets/key",
        "echo x &> secrets/key",
        "echo x >| linked/key",
        "echo x | tee secrets/key",
        "sed -i s/x/y/ secrets/key",
        "cp notes.txt secrets/key",
        "cp notes.txt secrets",
        "mv secrets/key elsewhere",
        "rm secrets/key",
        "touch secrets/new",
        "dd if=notes.txt of=secrets/key",
        "cd secrets && echo x > key",
        "sort notes.txt -o secrets/key",
    ],
)
@pytest.mark.parametrize("tool", ["write_file", "edit_file"])
def test_who_denies_writing_a_file_denies_the_commands_that_write_it(place: Path, command: str, tool: str) -> None:
    assert bash(place, command, {"bash": "allow", f"{tool}(secrets/**)": "deny"}) is DENY
    assert bash(place, command, {"bash": "allow", f"{tool}(other/**)": "deny"}) is ALLOW


def test_a_redirect_is_covered_by_an_allow_of_the_file_that_it_writes(place: Path) -> None:
    rules = {"bash(echo:*)": "allow", "write_file(src/**)": "allow"}
    assert bash(place, "echo x > src/new", rules) is ALLOW
    assert bash(place, "echo x > lib/new", rules) is ASK
    assert bash(place, "echo x > src/new", {"bash(echo:*)": "allow", "write_file": "allow"}) is ASK
    assert bash(place, "echo x > $F", {"bash(echo:*)": "allow", "write_file(**)": "allow"}) is ASK
    assert bash(place, "rm x > src/new", rules) is ASK


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        ("git reset --hard", "guard: git reset --hard"),
        ("cd /tmp && git status", "guard: git in another folder or with other settings"),
        ("echo x > .env", "guard: write to .env"),
        ("echo x | tee .git/hooks/pre-commit", "guard: write to .git"),
        ("echo x >> ~/.bashrc", "guard: write to .bashrc"),
        ("echo x > link.txt", "guard: write to .env"),
        ("sed -i s/x/y/ .github/workflows/ci.yml", "guard: write to .github/workflows"),
        ("rm -rf .git", "guard: write to .git"),
    ],
)
def test_what_is_guarded_asks_and_exactly_that_can_be_granted(place: Path, command: str, rule: str) -> None:
    made = authorized(place, {"bash": "allow"}, "bash", command=command)
    grants = offer(made, "bash", command=command)
    assert (made.judgement.verdict, made.judgement.rule) == (ASK, rule)
    assert all(not grant.endswith(":*)") for grant in grants)
    assert bash(place, command, {"bash": "allow"}, *grants) is ALLOW
    assert bash(place, command, {"bash": "allow"}, mode="bypass") is ALLOW


@pytest.mark.parametrize("command", ["rm -rf /", "rm -rf ~", "rm -rf .", "sudo rm -rf /etc", "bash -c 'rm -rf /*'"])
def test_what_nothing_may_approve_offers_no_grant(place: Path, command: str) -> None:
    made = authorized(place, {"bash": "allow"}, "bash", mode="bypass", command=command)
    assert made.judgement.rule.startswith("guard: rm of ")
    assert offer(made, "bash", command=command) == ()


def test_the_workspace_and_all_above_it_are_critical_under_their_own_names(place: Path) -> None:
    for folder in (place, place.parent, place.parent.parent):
        assert bash(place, f"rm -rf {folder}", {"bash": "allow"}, mode="bypass") is ASK
    assert bash(place, f"rm -rf {place / 'src'}", {"bash": "allow"}, mode="bypass") is ALLOW


GRANTED = [
    ({}, "ls; rm *.o", ("bash(ls:*)", r"bash(rm \*.o)")),
    ({"bash(ls:*)": "ask"}, "ls -la", ("bash(ls -la)",)),
    ({"bash(*)": "ask"}, r"grep \* x", (r"bash(grep \\\* x)",)),
    ({"bash": "ask", "read_file(.env)": "ask"}, "cat < .env", ("bash(cat)", "bash(< .env)")),
    ({"bash": "ask", "write_file(out)": "ask"}, "echo a > out", ("bash(echo a)", "bash(> out)")),
    ({"bash": "allow", "bash(timeout:5)": "ask"}, "ls", ()),
    ({"bash(*)": "ask"}, "a;b;c;d;e;f", ()),
    ({}, "a;b;c;d;e;f", tuple(f"bash({name})" for name in "abcde")),
    ({}, "cd src && ls", ("bash(cd src)", "bash(ls:*)")),
    ({"bash(*)": "ask"}, "eval x", ()),
]


@pytest.mark.parametrize(("rules", "command", "grants"), GRANTED)
def test_a_grant_shows_what_it_covers_and_after_a_scoped_ask_is_exact(
    place: Path, rules: dict[str, str], command: str, grants: tuple[str, ...]
) -> None:
    made = authorized(place, rules, "bash", command=command, timeout=5)
    assert made.judgement.verdict is ASK
    assert offer(made, "bash", command=command) == grants
    if grants and len(grants) < MAX_GRANTS:
        assert bash(place, command, rules, *grants) is ALLOW
        assert bash(place, f"{command} -x; touch y", rules, *grants) is ASK


@pytest.mark.parametrize("path", ["a*b?[c]", "~", "notes.txt", "src/deep", r"back\slash", "*"])
def test_a_granted_path_is_that_path_alone(place: Path, path: str) -> None:
    rules = {"write_file(**)": "ask"}
    made = authorized(place, rules, "write_file", path=path, content="")
    (grant,) = offer(made, "write_file", path=path, content="")
    again = authorized(place, rules, "write_file", grant, path=path, content="")
    assert again.judgement.verdict is ALLOW
    for other in (path + "x", path + "/x", "src/" + path, "axbyc"):
        found = authorized(place, rules, "write_file", grant, path=other, content="")
        assert found.judgement.verdict is ASK, other


def test_a_granted_host_is_that_host_alone(place: Path) -> None:
    made = authorized(place, {}, "http_fetch", url="https://x.com/a")
    grants = offer(made, "http_fetch", url="https://x.com/a")
    assert grants == ("http_fetch(domain:x.com)",)
    assert authorized(place, {}, "http_fetch", *grants, url="https://x.com/b").judgement.verdict is ALLOW
    assert authorized(place, {}, "http_fetch", *grants, url="https://a.x.com/").judgement.verdict is ASK


def test_searching_where_a_denied_file_may_be_asks_and_elsewhere_does_not(place: Path) -> None:
    rules = {"read_file(/secrets/**)": "deny"}

    def searched(**given: str) -> Verdict:
        return authorized(place, rules, "grep", mode="default", pattern="x", **given).judgement.verdict

    assert searched() is ASK
    assert searched(path="src") is ALLOW
    assert searched(path="secrets") is DENY
    assert searched(path="linked") is DENY
    assert searched(path="secrets/key") is DENY
    assert searched(path="notes.txt") is ALLOW


PIECES = ["ls", "ls -la", "'ls' x", "timeout 5 ls", "nice ls", "NODE_ENV=x ls", "ls < notes.txt", "ls 2>/dev/null"]
OTHERS = ["rm x", "curl y", "X=1 ls", "$Z", "ls > f", "lsof", "eval ls", "sudo ls", "ls & cat", "\\rm x", "r''m x"]
JOINTS = [
    *("{} && {}", "{} || {}", "{}; {}", "{} | {}", "{} |& {}", "{} & {}", "{}\n{}", "({}; {})", "! {} | {}"),
    *("if {}; then {}; fi", "while {}; do {}; done", "for i in a; do {}; {}; done", "f() {{ {}; }}; {}"),
    *("case x in x) {};; *) {};; esac", '{} "$({})"', "{} `{}`", "{} <({})", "time {}; {}", "{{ {}; {}; }}"),
    *("{} # x\n{}", "{} $({} ) x", "[ -f x ] && {}; {}", "bash -c '{}; ls' ; {}"),
]


@st.composite
def compounds(draw: st.DrawFn) -> str:
    """Allowed commands around exactly one that is not, joined and nested in every way."""
    line = draw(st.sampled_from(OTHERS))
    for _ in range(draw(st.integers(0, 3))):
        joint, piece = draw(st.sampled_from(JOINTS)), draw(st.sampled_from(PIECES))
        line = joint.format(piece, line) if draw(st.booleans()) else joint.format(line, piece)
    return line


@given(compounds())
def test_no_compound_with_a_part_that_is_not_allowed_is_allowed(line: str) -> None:
    rules = {"bash(ls:*)": "allow", "bash(f)": "allow", "bash([ *)": "allow", "read_file(**)": "allow"}
    assert bash(Path("/tmp"), line, rules) is not ALLOW


@given(compounds())
def test_a_deny_is_found_in_every_compound(line: str) -> None:
    rules = {"bash": "allow", "bash(ls:*)": "deny", "bash(rm:*)": "deny", "bash(curl:*)": "deny"}
    assert bash(Path("/tmp"), line, rules) is not ALLOW or line == "lsof"
