"""`make test` fails if something is broken, and only then: with tests that are planted in a project of their own."""

import subprocess
import sys
from pathlib import Path

SETTINGS = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = session
asyncio_default_test_loop_scope = session
filterwarnings = error
"""
PASSES_THE_SECOND_TIME = """
from pathlib import Path

def test_passes_the_second_time():
    tried = Path("tried")
    is_first, _ = not tried.exists(), tried.touch()
    assert not is_first
"""
LEAVES_A_CONNECTION_OPEN = """
import asyncio
import gc
import socket

async def test_leaves_a_connection_open():
    async with await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        bare = socket.create_connection(server.sockets[0].getsockname())
        assert "this" == "fails"
        bare.close()
        writer.close()

async def test_is_innocent():
    gc.collect()
"""


def gate(folder: Path, planted: str) -> tuple[int, list[str]]:
    """The exit code, and the lines that the gate says in the end."""
    (folder / "pytest.ini").write_text(SETTINGS)
    (folder / "test_planted.py").write_text(planted)
    command = [sys.executable, "-m", "tests.gate", "-p", "tests.isolation", "-q", "test_planted.py"]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout.rstrip().rpartition("\n\n")[2].split("\n")


def test_what_passes_at_the_second_try_leaves_the_gate_green_and_is_named(tmp_path: Path) -> None:
    code, said = gate(tmp_path, PASSES_THE_SECOND_TIME)
    assert code == 0
    assert said == [
        "Passed at the second try. Mend these before you go on (CONTRIBUTING.md):",
        "    test_planted::test_passes_the_second_time",
    ]


def test_what_fails_twice_fails_the_gate_and_no_other_test_with_it(tmp_path: Path) -> None:
    code, said = gate(tmp_path, LEAVES_A_CONNECTION_OPEN)
    assert code == 1
    assert said == [
        "Failed twice:",
        "    test_planted::test_leaves_a_connection_open",
    ]
    log = (tmp_path / ".reports" / "tests.log").read_text()
    assert "1 failed, 1 passed in" in log
    assert "1 failed, 1 deselected in" in log
