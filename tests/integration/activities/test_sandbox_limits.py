"""What a sandboxed command may use: each limit holds for the whole tree, and the model reads which one it was."""

import os
from pathlib import Path
from threading import Event

import pytest

from loom.activities.adapters.sandbox import watchdog
from loom.activities.adapters.sandbox.bubblewrap import find_sandbox
from loom.activities.adapters.sandbox.resource_limits import counts_ids_per_namespace, hint
from loom.activities.adapters.shell.parser import BashParser
from loom.activities.ports import ToolContext
from loom.activities.toolbox.built_in.shell import shell_tool
from loom.domain.core.errors import ToolExecutionError
from loom.domain.tools.sandbox_limits import Limits

MIB = 1024**2
SMALL = Limits(
    memory=192 * MIB, processes=64, cpu=0.1, file_size=16 * MIB, disk=64 * MIB, temporary=8 * MIB, open_files=128
)
SANDBOX, WHY_NOT = find_sandbox("on", limits=SMALL)
BOMBS_ARE_HELD = os.geteuid() != 0 or counts_ids_per_namespace(os.uname().release)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path.resolve()


async def bash(place: Path, command: str, timeout: float = 20) -> str:
    tool = shell_tool(SANDBOX, BashParser(), 60, WHY_NOT)
    context = ToolContext(workspace=place, run_id="r", call_id="c", idempotency_key="k", timeout=70)
    return str(await tool.run(tool.parse({"command": command, "timeout": timeout}), context))


async def refusal(place: Path, command: str, timeout: float = 20) -> str:
    """The first line of what the model reads of a command that does not end well."""
    with pytest.raises(ToolExecutionError) as raised:
        await bash(place, command, timeout)
    return raised.value.message.split("\n")[0]


STOPPED = "exit code -9: the command was stopped; "
SEEMS = "exit code 1: this looks like a limit of the sandbox; "
MEMORY = "one command may use 192 MiB of memory: process less data at a time"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("python3 -c 'bytearray(300 << 20)'", SEEMS + MEMORY),
        (
            "for i in 1 2; do python3 -c 'import time; x = b\"x\" * (120 << 20); time.sleep(9)' & done; wait",
            STOPPED + MEMORY,
        ),
        (
            "while :; do :; done",
            STOPPED
            + "one command may use 0.1 s of processor time per second of its timeout: do less, or split the work",
        ),
        (
            "for i in 1 2 3 4 5 6; do (while :; do :; done) & done; wait",
            STOPPED
            + "one command may use 0.1 s of processor time per second of its timeout: do less, or split the work",
        ),
        (
            "for i in $(seq 30); do head -c 15M /dev/zero > $i; sync $i; done; sleep 9",
            STOPPED + "one command may write 64 MiB to the disk: write less, or delete files that are not needed",
        ),
        (
            'exec python3 -c \'open("x", "wb").write(b"x" * (20 << 20))\'',
            SEEMS + "the size of one file is limited to 16 MiB: write less, or write several files",
        ),
        (
            "head -c 20M /dev/zero > x",
            SEEMS.replace("1", "153") + "the size of one file is limited to 16 MiB: write less, or write several files",
        ),
        (
            "head -c 10M /dev/zero > /tmp/x",
            SEEMS + "/tmp can hold 8 MiB, and the disk is limited: write less, or write elsewhere",
        ),
        (
            "head -c 10M /dev/zero > /dev/shm/x",
            SEEMS + "/tmp can hold 8 MiB, and the disk is limited: write less, or write elsewhere",
        ),
        (
            "python3 -c 'x = [open(\"/dev/null\") for _ in range(200)]'",
            SEEMS + "one process may have 128 open files: close some, or see `ulimit -n`",
        ),
    ],
)
async def test_a_command_that_takes_too_much_is_told_the_limit(place: Path, command: str, said: str) -> None:
    assert await refusal(place, command, timeout=20) == said


@pytest.mark.skipif(not BOMBS_ARE_HELD, reason="for root the kernel bounds processes as of Linux 6.14 only")
@pytest.mark.parametrize(
    "command",
    [
        ":(){ :|:& };:; wait; sleep 9",
        "exec python3 -c 'import os\nwhile True:\n  try: os.fork()\n  except OSError: pass'",
    ],
)
async def test_a_fork_bomb_ends_with_its_command(place: Path, command: str) -> None:
    said = STOPPED + "one command may have 64 processes and threads: start fewer at a time"
    assert await refusal(place, command, timeout=60) == said


async def test_a_slow_check_of_the_memory_keeps_no_other_check_from_stopping_a_command(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a fork bomb, reading one `smaps_rollup` took up to 25 s, in which the worker did nothing else."""
    has_ended, read = Event(), watchdog._read

    def waiting(path: str) -> str:
        if path.endswith("smaps_rollup"):
            has_ended.wait(10)
        return read(path)

    monkeypatch.setattr(watchdog, "_read", waiting)
    code = (
        "import os, time\nx = bytearray(b'x' * (90 << 20))\n"
        "for n in range(80):\n  if n == 5: time.sleep(1)\n  if not os.fork(): break\ntime.sleep(9)"
    )
    try:
        said = await refusal(place, f'exec python3 -c "{code}"')
    finally:
        has_ended.set()
    assert said.endswith("one command may have 64 processes and threads: start fewer at a time")


async def test_threads_count_as_processes(place: Path) -> None:
    code = "import threading, time\nfor _ in range(80): threading.Thread(target=time.sleep, args=(9,)).start()"
    assert (await refusal(place, f"ulimit -s 256; exec python3 -c '{code}'")).endswith(
        "one command may have 64 processes and threads: start fewer at a time"
    )


async def test_shared_memory_counts_once(place: Path) -> None:
    code = (
        "import os, time\nx = bytearray(b'x' * (90 << 20))\n"
        "for _ in range(5):\n  if not os.fork(): time.sleep(1); os._exit(0)\n"
        "for _ in range(5): os.wait()\nprint('fine')"
    )
    assert await bash(place, f'exec python3 -c "{code}"') == "fine"


async def test_files_in_tmp_count_as_memory(place: Path) -> None:
    generous = Limits(memory=32 * MIB, temporary=100 * MIB)
    sandbox, why_not = find_sandbox("on", limits=generous)
    tool = shell_tool(sandbox, BashParser(), 60, why_not)
    context = ToolContext(workspace=place, run_id="r", call_id="c", idempotency_key="k", timeout=70)
    with pytest.raises(ToolExecutionError, match="stopped; one command may use 32 MiB of memory"):
        await tool.run(tool.parse({"command": "head -c 60M /dev/zero > /tmp/x; sleep 9"}), context)


async def test_what_keeps_within_the_limits_is_left_alone(place: Path) -> None:
    command = "for i in $(seq 20); do sleep 0.5 & done; head -c 15M /dev/zero > x; wait; stat -c %s x"
    assert await bash(place, command) == str(15 << 20)


async def test_no_space_is_reserved_where_no_limit_would_see_it(place: Path) -> None:
    assert "Operation not supported" in str(await bash(place, "fallocate -l 1M x 2>&1 || true"))


@pytest.mark.parametrize(
    ("exit_code", "output", "said"),
    [
        (0, "MemoryError", ""),
        (1, "no such file", ""),
        (1, "terminate called after throwing 'std::bad_alloc'", f"this looks like a limit of the sandbox; {MEMORY}"),
    ],
)
def test_only_a_failure_in_the_kernels_words_hints_at_a_limit(exit_code: int, output: str, said: str) -> None:
    assert hint(exit_code, output, SMALL) == said


@pytest.mark.parametrize(
    ("release", "is_own"),
    [
        ("6.14.0", True),
        ("6.18.44-x", True),
        ("7.0", True),
        ("6.13.9", False),
        ("5.15.0-91-generic", False),
        ("?", False),
    ],
)
def test_a_kernel_whose_highest_process_id_is_the_machines_is_left_alone(release: str, is_own: bool) -> None:
    assert counts_ids_per_namespace(release) is is_own
