"""bash in its sandbox: what it can do, what it cannot, and that nothing outlives it."""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from loom.activities.adapters.sandbox.bubblewrap import find_program, find_sandbox
from loom.activities.adapters.sandbox.namespaces import Bubblewrap
from loom.activities.adapters.sandbox.unsandboxed import Unsandboxed
from loom.activities.adapters.shell.parser import BashParser
from loom.activities.ports import ToolContext
from loom.activities.toolbox.built_in.all_tools import built_in_tools
from loom.activities.toolbox.built_in.shell import Finished, OpenedRepository, Sandbox, grants_of, shell_tool
from loom.domain.core.errors import ToolExecutionError, ToolUnavailableError, ToolValidationError
from loom.domain.core.tool_calls import Effect, Verdict
from loom.domain.permissions.judge import judge
from loom.testing.waiting import eventually
from tests.sandboxes import SANDBOX, WHY_NOT
from tests.stopped import said_when_stopped

PARSER = BashParser()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path.resolve()


@pytest.fixture
def nap(place: Path) -> str:
    """Seconds to sleep that no other process on this machine sleeps for."""
    return f"7{os.getpid()}.{abs(hash(place)) % 10**6}"


@pytest.fixture(params=["sandboxed", "unsandboxed"])
def anywhere(request: pytest.FixtureRequest) -> Sandbox | None:
    return SANDBOX if request.param == "sandboxed" else Unsandboxed()


async def bash(
    place: Path,
    command: str,
    sandbox: Sandbox | None = SANDBOX,
    on_output: Callable[[str], None] = print,
    **arguments: object,
) -> str:
    tool = shell_tool(sandbox, PARSER, 60, "no sandbox: install one")
    context = ToolContext(workspace=place, run_id="r", call_id="c", idempotency_key="k", timeout=70, progress=on_output)
    return str(await tool.run(tool.parse({"command": command, **arguments}), context))


def sleeping(seconds: str) -> list[int]:
    """Processes of ours that sleep for exactly that long."""
    return [
        process.pid for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == ["sleep", seconds]
    ]


async def gone(seconds: str) -> bool:
    return await count_becomes(0, seconds)


async def count_becomes(count: int, seconds: str) -> bool:
    async def look() -> bool:
        return len(sleeping(seconds)) == count

    return await eventually(look)


def test_there_is_a_sandbox_here() -> None:
    assert isinstance(SANDBOX, Bubblewrap), WHY_NOT


async def test_a_command_runs_in_the_workspace_and_may_change_it(place: Path, anywhere: Sandbox) -> None:
    assert await bash(place, "pwd; echo hi > a; cat a", anywhere) == f"{place}\nhi"
    assert (place / "a").read_text() == "hi\n"


async def test_failure_is_an_error_with_code_and_all_output(place: Path, anywhere: Sandbox) -> None:
    with pytest.raises(ToolExecutionError) as raised:
        await bash(place, "echo out; echo err >&2; exit 3", anywhere)
    assert raised.value.message == "exit code 3\nout\nerr"


async def test_output_streams_while_the_command_runs(place: Path) -> None:
    pieces: list[str] = []

    def hear(text: str) -> None:
        pieces.append(text)
        (place / "heard").touch()

    await bash(place, "echo one; until [ -e heard ]; do sleep 0.02; done; echo two", on_output=hear)
    assert pieces == ["one\n", "two\n"]


async def test_long_output_keeps_its_beginning_and_end_and_floods_nobody(place: Path) -> None:
    streamed: list[str] = []
    output = await bash(place, "seq 1 400000", on_output=streamed.append)
    assert len(output) <= 2_000_000
    assert output.startswith("1\n2\n3\n")
    assert output.endswith("\n399999\n400000")
    assert "characters left out here" in output
    assert len("".join(streamed)) <= 30_000


async def test_time_runs_out_for_the_whole_tree(place: Path, anywhere: Sandbox, nap: str) -> None:
    command = f"echo begun; sleep {nap} & setsid sleep {nap} & (setsid nohup sleep {nap} &); sleep {nap}"
    said = await said_when_stopped(lambda seconds: bash(place, command, anywhere, timeout=seconds))
    assert "; set a longer" in said
    assert await gone(nap)


async def test_what_a_command_leaves_behind_ends_with_it(place: Path, anywhere: Sandbox, nap: str) -> None:
    assert await bash(place, f"setsid sleep {nap} & nohup sleep {nap} & (sleep {nap} &); echo done", anywhere) == "done"
    assert await gone(nap)


async def test_cancelling_kills_the_whole_tree_before_it_goes_on(place: Path, anywhere: Sandbox, nap: str) -> None:
    running = asyncio.ensure_future(bash(place, f"setsid sleep {nap} & (setsid sleep {nap} &); sleep {nap}", anywhere))
    assert await count_becomes(3, nap)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await gone(nap)


async def test_a_killed_worker_takes_the_sandbox_with_it(place: Path, nap: str) -> None:
    script = f"""
import asyncio
from pathlib import Path
from loom.activities.adapters.sandbox.bubblewrap import find_sandbox
sandbox, _ = find_sandbox("on")
command = ["bash", "-c", "setsid sleep {nap} & sleep {nap}"]
asyncio.run(sandbox.run(command, workspace=Path({str(place)!r}), timeout=60, max_output=99, on_output=print))
"""
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", script, cwd=Path(__file__).parents[3])
    try:
        assert await count_becomes(2, nap)
    finally:
        worker.kill()
        await worker.wait()
    assert await gone(nap)


@pytest.mark.parametrize(
    "command",
    [
        "echo x > /etc/loom-was-here",
        "echo x > /usr/loom-was-here",
        "echo x > .git/config",
        "mount -o remount,rw /",
        "cat /etc/shadow",
        "exec 3<>/dev/tcp/127.0.0.1/22",
        "ls ~root/* /home/* /run/*",
    ],
)
async def test_the_sandbox_refuses_what_is_not_the_workspaces(place: Path, command: str) -> None:
    (place / "workspace/.git").mkdir(parents=True)
    with pytest.raises(ToolExecutionError, match=r"exit code|No such file|Read-only|denied"):
        await bash(place / "workspace", command)


async def test_the_state_of_loom_itself_is_not_there(place: Path) -> None:
    (place / "workspace/.loom").mkdir(parents=True)
    (place / "workspace/.loom/secret").write_text("secret")
    output = await bash(place / "workspace", "ls -A .loom; touch .loom/state 2> /dev/null || echo refused")
    assert output == "refused"
    assert [entry.name for entry in (place / "workspace/.loom").iterdir()] == ["secret"]


async def test_what_is_written_beside_the_workspace_is_nowhere(place: Path) -> None:
    (place / "workspace").mkdir()
    await bash(place / "workspace", "echo x > ../loom-was-here || true")
    assert not (place / "loom-was-here").exists()


async def test_the_environment_and_processes_of_the_worker_are_not_there(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    output = await bash(place, "env; cat /proc/*/environ; ls -d /proc/[0-9]*")
    assert "secret" not in output
    assert str(os.getpid()) not in [Path(line).name for line in output.split("\n")]


async def test_keys_in_a_workspace_that_is_a_home_are_hidden(place: Path) -> None:
    (place / ".ssh").mkdir()
    (place / ".ssh/id").write_text("key")
    assert await bash(place, "ls -A .ssh") == ""


async def test_further_folders_can_be_hidden(place: Path) -> None:
    (place / "state").mkdir()
    (place / "state/socket").touch()
    (place / "workspace").mkdir()
    sandbox = Bubblewrap(find_program() or "", hidden=[place / "state"])
    assert await bash(place / "workspace", f"[ -e {place}/state/socket ] || echo hidden", sandbox) == "hidden"


async def test_without_a_sandbox_bash_is_there_and_says_what_to_do(place: Path) -> None:
    tool = shell_tool(None, PARSER, 60, "install one")
    assert tool.is_available() == "install one"
    with pytest.raises(ToolUnavailableError, match="install one"):
        await bash(place, "ls", None)


@pytest.mark.parametrize("arguments", [{"command": " "}, {"command": "a\0b"}, {"command": "ls", "timeout": 601}, {}])
def test_commands_that_cannot_run_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ToolValidationError):
        shell_tool(SANDBOX, PARSER, 60, "").parse(arguments)


async def test_a_workspace_that_is_gone_is_said_to_be_gone(place: Path) -> None:
    with pytest.raises(ToolExecutionError, match="is not a folder on this worker"):
        await bash(place / "gone", "ls")


async def test_a_command_too_long_for_the_system_is_an_error(place: Path) -> None:
    with pytest.raises(ToolExecutionError, match="too long"):
        await bash(place, "echo " + "é" * 90_000)


@pytest.mark.parametrize(
    ("command", "grants"),
    [
        ("ls -la", ("bash(ls:*)",)),
        ("ls && cat x | sort", ("bash(ls:*)", "bash(cat:*)", "bash(sort)")),
        ("rm -rf build", ("bash(rm -rf build)",)),
        ("git push origin", ("bash(git push origin)",)),
        ("python3.12 -m x", ("bash(python3.12 -m x)",)),
        ("./run.sh x", ("bash(./run.sh x)",)),
        ("X=1 ls", ("bash(X=1 ls)",)),
        ("echo a > out", ("bash(echo:*)", "bash(> out)")),
        ("rm *.o", (r"bash(rm \*.o)",)),
        ("ls; rm *.o", ("bash(ls:*)", r"bash(rm \*.o)")),
        ("eval x", ()),
        ("a;b;c;d;e;f", tuple(f"bash({name})" for name in "abcde")),
        ("ls $X", ("bash(ls:*)",)),
        ("rm $X", ()),
        ("for x in a b; do ls $x; done", ("bash(ls:*)",)),
        ("sort --compress-program=id", ()),
        ("timeout 5 ls", ("bash(ls:*)",)),
        ("bash -c 'ls'", ("bash(ls:*)",)),
        ("ls | xargs -n1 cat", ("bash(ls:*)", "bash(xargs -n1 cat)", "bash(cat:*)")),
        ("ls | xargs -n1 rm", ()),
    ],
)
def test_an_approval_for_the_run_covers_programs_or_exact_commands(command: str, grants: tuple[str, ...]) -> None:
    assert grants_of(PARSER.parse(command)) == grants


class Recorded(Unsandboxed):
    """A sandbox that remembers what it was asked for."""

    timeout = 0.0

    async def run(
        self,
        command: Sequence[str],
        *,
        workspace: Path,
        timeout: float,
        max_output: int,
        on_output: Callable[[str], None],
        stdin: bytes = b"",
        readable: Sequence[Path] = (),
        repository: OpenedRepository | None = None,
    ) -> Finished:
        self.timeout = timeout
        return Finished(exit_code=0, output=f"{command[-1]} in {workspace} {max_output}")


async def test_a_call_without_a_time_limit_has_the_workers(place: Path) -> None:
    sandbox = Recorded()
    assert await bash(place, "ls", sandbox) == f"ls in {place} 2000000"
    assert sandbox.timeout == 60
    await bash(place, "ls", sandbox, timeout=5)
    assert sandbox.timeout == 5


async def test_output_that_is_not_utf8_stays_readable(place: Path, anywhere: Sandbox | None) -> None:
    os.close(os.open(os.fsencode(place) + b"/caf\xe9.txt", os.O_CREAT))
    assert r"caf\xe9.txt" in await bash(place, "ls", anywhere)
    assert "€" in await bash(place, r"printf '\xe2\x82'; sleep 0.1; printf '\xac\n'", anywhere)


def test_the_built_in_tools_stand_in_order_of_their_names() -> None:
    tools = built_in_tools(sandbox=SANDBOX, shell_parser=PARSER, tool_timeout=120)
    assert list(tools) == sorted(tools)
    effects = {name: (tool.spec.effect, tool.spec.parallel) for name, tool in tools.items()}
    assert effects["bash"] == effects["edit_file"] == (Effect.ONCE, False)
    assert effects["write_file"] == (Effect.IDEMPOTENT, False)
    assert {effects[name] for name in ("glob", "grep", "list_dir", "read_file")} == {(Effect.READ, True)}


def test_a_sandbox_that_is_switched_off_is_off() -> None:
    assert isinstance(find_sandbox("off")[0], Unsandboxed)


@pytest.mark.parametrize("command", ["rm a.py", "rm -f sub/a.py", "unlink a.py", "cd sub && rm a.py"])
def test_a_rule_for_delete_file_applies_to_rm(place: Path, command: str) -> None:
    tool = shell_tool(SANDBOX, PARSER, 60, WHY_NOT)
    subjects = tool.subjects(tool.parse({"command": command}), place)
    assert judge("bash", subjects, {"bash": "allow", "delete_file(a.py)": "deny"}).verdict is Verdict.DENY
    assert judge("bash", subjects, {"bash": "allow", "delete_file(b.py)": "deny"}).verdict is Verdict.ALLOW


def test_a_rule_for_delete_file_asks_where_the_deleted_file_is_unknown(place: Path) -> None:
    tool = shell_tool(SANDBOX, PARSER, 60, WHY_NOT)
    subjects = tool.subjects(tool.parse({"command": "rm $(find . -name x)"}), place)
    assert judge("bash", subjects, {"bash": "allow", "delete_file(a.py)": "deny"}).verdict is Verdict.ASK
