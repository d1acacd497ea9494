"""The receivers of docs/notifications.md get the page's test message: its HTTP receiver, and its command for mails."""

import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import HTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from standardwebhooks import Webhook

from tests.docs_pages import SHELLS, Block, blocks_of, lines_of, shell
from tests.missing_programs import skip_or_fail

WEBHOOK, MAIL = blocks_of("docs/notifications.md", *SHELLS)
(RECEIVER,) = blocks_of("docs/notifications.md", "python")
TEST_MESSAGE: Final = "This is a trial. Nothing waits for you."


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment without settings."""
    return {"PATH": os.environ["PATH"], "LOOM_HOME": str(tmp_path / ".loom"), "HOME": str(tmp_path)}


def exported(block: Block, folder: Path, env: dict[str, str]) -> dict[str, str]:
    """The environment after the exports of a block."""
    exports = [line for line in lines_of(block) if line.startswith("export ")]
    told = shell("\n".join((*exports, "env --null")), folder, env)
    return dict(pair.split("=", 1) for pair in told.split("\0") if pair)


def names_of_receiver(secret: str) -> dict[str, Any]:
    """What the page's program defines."""
    names: dict[str, Any] = {"__name__": "page"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOM_NOTIFY_SECRET", secret)
        exec(RECEIVER.text, names)
    return names


@contextmanager
def receiving(secret: str) -> Iterator[str]:
    """The page's receiver on a free port."""
    names = names_of_receiver(secret)
    with HTTPServer(("127.0.0.1", 0), names["Receiver"]) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_page_s_receiver_gets_messages_that_the_page_s_secret_signs(
    tmp_path: Path, env: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    *_, send, up = lines_of(WEBHOOK)
    assert (send.partition("#")[0].strip(), up) == ("loom notify test", "loom up")
    given = exported(WEBHOOK, tmp_path, env)
    with receiving(given["LOOM_NOTIFY_SECRET"]) as url:
        assert given["LOOM_NOTIFY_URL"].startswith("https://hooks.slack.com/")
        assert shell(send, tmp_path, given | {"LOOM_NOTIFY_URL": url}) == "LOOM_NOTIFY_URL: sent\n"
        assert TEST_MESSAGE in capsys.readouterr().out
        other = exported(WEBHOOK, tmp_path, env) | {"LOOM_NOTIFY_URL": url}
        assert "the receiver answered 401" in shell("loom notify test --json || true", tmp_path, other)


def test_the_page_s_receiver_refuses_recorded_changed_and_unsigned_messages(
    tmp_path: Path, env: dict[str, str]
) -> None:
    secret, now = exported(WEBHOOK, tmp_path, env)["LOOM_NOTIFY_SECRET"], datetime.now(UTC)
    is_genuine = names_of_receiver(secret)["is_genuine"]

    def headers(sent: datetime) -> dict[str, str]:
        signature = Webhook(secret).sign("msg_1", sent, "{}")
        return {
            "webhook-id": "msg_1",
            "webhook-timestamp": str(int(sent.timestamp())),
            "webhook-signature": f"v1,other {signature}",
        }

    genuine = headers(now)
    assert is_genuine(genuine, b"{}")
    assert not is_genuine(genuine, b"[]")
    assert not is_genuine(headers(now - timedelta(minutes=6)), b"{}")
    assert not is_genuine({**genuine, "webhook-timestamp": str(int(now.timestamp()) + 1)}, b"{}")
    for name in genuine:
        assert not is_genuine({**genuine, name: "\xe9"}, b"{}")
        assert not is_genuine({each: value for each, value in genuine.items() if each != name}, b"{}")


def test_the_page_s_command_mails_the_message(tmp_path: Path, env: dict[str, str]) -> None:
    if shutil.which("jq") is None:
        skip_or_fail("there is no jq")
    programs = tmp_path / "bin"
    programs.mkdir()
    mail = programs / "mail"
    mail.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/words\ncat >{tmp_path}/mail\n')
    mail.chmod(0o755)
    env["PATH"] = f"{programs}:{env['PATH']}"
    told = shell("loom notify test --json", tmp_path, exported(MAIL, tmp_path, env))
    assert json.loads(told) == [{"channel": "command", "ok": True, "error": None}]
    assert (tmp_path / "words").read_text().split() == ["-s", "Loom", "ann@example.com"]
    assert TEST_MESSAGE in (tmp_path / "mail").read_text()
