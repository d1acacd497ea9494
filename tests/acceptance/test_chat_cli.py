"""`loom chat` end to end: in a pipe, with one message, and at a terminal that is left and come back to."""

import asyncio
import json
import os
import pty
import shlex
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from loom.testing.harness import Harness
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, text
from loom.testing.waiting import PATIENCE, eventually
from tests.acceptance.conftest import Killable, Working
from tests.acceptance.test_command_line import LOOM, Cli, command_line, said
from tests.cut_line import cut_line

WRITE = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")
TAKES_TERMINAL = """
import os, signal, sys
os.login_tty(0)
signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell lets commands in the background ignore it
os.execv(sys.argv[1], sys.argv[1:])
"""


def echo(request: SeenRequest) -> Reply:
    """Answers each message with its own words, and writes a file when it is told to."""
    last = request.messages[-1]
    if last["role"] == "user" and last["content"] == "write":
        return calls(WRITE)
    if last["role"] == "tool":
        return text("I wrote it")
    return text(f"you said: {last['content']}")


@pytest.mark.slow
async def test_lines_of_a_pipe_are_answered_and_another_terminal_goes_on(working: Working, session: str) -> None:
    loom, model = await working(echo)
    cli = command_line(loom)
    process = await cli.begun("chat", "--session", session, stdin=PIPE)
    out, _ = await process.communicate(b"one\n\ntwo\n/exit\nthree\n")
    assert process.returncode == 0
    assert out.decode().splitlines() == ["you said: one", "you said: two"]

    once = await cli("chat", "three", "--session", session, "--json")

    assert once.code == 0
    assert (once.json["output"], once.json["status"]) == ("you said: three", "completed")
    said = [m["content"] for m in model.requests[-1].messages if m["role"] in ("user", "assistant")]
    assert said == ["one", "you said: one", "two", "you said: two", "three"]


@pytest.mark.slow
async def test_without_a_worker_it_ends_with_one_line_and_the_message_is_answered_once_later(
    killable: Killable, session: str
) -> None:
    loom, model, workers = await killable(echo)
    cli = command_line(loom)
    of_ann = f"--session '{session} piped' --tenant acme --user ann@acme"
    process = await cli.begun("chat", *shlex.split(of_ann), stdin=PIPE)
    ran, (out, err) = await asyncio.gather(
        cli("chat", "one", "--session", session), process.communicate(b"first line\nsecond line\n")
    )
    assert (ran.code, ran.out, process.returncode, out) == (5, "", 5, b"")
    for line, options in ((ran.err, f"--session {session}"), (err.decode(), of_ann)):
        assert line == (
            "loom: no worker is running. The message is stored, and a worker will answer it once: start one with "
            f"`loom worker` or `loom up`, and come back with `loom chat {options}`\n"
        )

    await workers.start()
    two = await cli("chat", "two", "--session", session)
    chat_of_ann = f"chat-acme%3Aann@acme%3A{session} piped"
    loom.started += [f"chat-{session}", chat_of_ann]

    assert (two.code, two.out.splitlines()) == (0, ["you said: two"])
    said_to_model = [m["content"] for m in model.requests[-1].messages if m["role"] in ("user", "assistant")]
    assert said_to_model == ["one", "you said: one", "two"]
    piped = await loom.until(chat_of_ann, lambda status: status["chat"]["answered"] == 1)
    assert piped["chat"]["received"] == 1
    assert sorted(str(request.messages[-1]["content"]) for request in model.requests) == ["first line", "one", "two"]


@pytest.mark.slow
async def test_a_message_that_the_server_did_not_get_is_named_and_sent_once_when_it_is_back(
    working: Working, session: str
) -> None:
    loom, model = await working(echo)
    async with cut_line(loom.settings.temporal_address) as line:
        cli = command_line(loom, TEMPORAL_ADDRESS=line.address)
        process = await cli.begun("chat", "--session", session, stdin=PIPE)
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        await said(process.stdout, "you said: one\n")
        await line.cut()
        process.stdin.write(b"two\n")
        told = await said(process.stderr, "Ctrl-C leaves\n")
        await line.mend()
        answered = await said(process.stdout, "you said: two\n")
        process.stdin.write(b"/exit\n")
        _, more = await process.communicate()

    assert told.splitlines()[-2:] == [
        "the message isn't sent: two",
        "waiting until the server is back; Ctrl-C leaves",
    ]
    assert (process.returncode, answered, more) == (0, "you said: two\n", b"")
    loom.started.append(f"chat-{session}")
    assert (await chat_status(loom, session))["received"] == 2
    assert [str(request.messages[-1]["content"]) for request in model.requests] == ["one", "two"]


@pytest.mark.slow
async def test_a_conversation_does_not_begin_without_a_server(working: Working, session: str) -> None:
    loom, _ = await working(echo)
    ran = await command_line(loom, TEMPORAL_ADDRESS="127.0.0.1:1")("chat", "hello", "--session", session)
    assert (ran.code, ran.out) == (5, "")
    assert "loom: the message isn't sent: hello\n" in ran.err


async def chat_status(loom: Harness, session: str) -> dict[str, Any]:
    """What the status of a chat says of the conversation."""
    chat = (await loom.client.status(f"chat-{session}"))["chat"]
    assert chat is not None
    return dict(chat)


@contextmanager
def terminal(cli: Cli, *words: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A command at a terminal of its own."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TAKES_TERMINAL, LOOM, *words], env=cli.env, stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    os.set_blocking(master, False)
    try:
        yield master, process
    finally:
        process.kill()
        process.wait()
        os.close(master)


async def shows(master: int, seen: list[str], words: str) -> None:
    """Wait until the terminal has shown these words."""

    async def look() -> bool:
        with suppress(BlockingIOError, OSError):
            seen.append(os.read(master, 65536).decode(errors="replace"))
        return words in "".join(seen)

    await eventually(look)
    seen[:] = ["".join(seen).partition(words)[2]]


@pytest.mark.slow
async def test_a_terminal_asks_for_approval_in_place_and_shows_the_last_words_on_return(
    working: Working, session: str
) -> None:
    loom, _ = await working(echo)
    cli = command_line(loom)
    seen: list[str] = []
    with terminal(cli, "chat", "--session", session) as (master, process):
        await shows(master, seen, "›")
        os.write(master, b"hello\n")
        await shows(master, seen, "you said: hello")
        await shows(master, seen, "› ")
        os.write(master, b"write\n")
        await shows(master, seen, "out.txt")
        await loom.asked(f"chat-{session}")
        await shows(master, seen, "[y]")
        os.write(master, b"y")
        await shows(master, seen, "I wrote it")
        await shows(master, seen, "› ")
        os.write(master, b"\x03")
        await shows(master, seen, f"loom chat --session {session}")
        assert await asyncio.to_thread(process.wait, PATIENCE) == 0
    assert (loom.workspace / "out.txt").read_text() == "hello"

    seen.clear()
    with terminal(cli, "chat", "--session", session) as (master, process):
        await shows(master, seen, "› hello")
        await shows(master, seen, "I wrote it")
        os.write(master, b"/exit\n")
        assert await asyncio.to_thread(process.wait, PATIENCE) == 0
    answered = (await cli.status(f"chat-{session}"))["chat"]
    assert json.dumps(answered["answered"]) == "2"
