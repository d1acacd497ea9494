"""Logs say what happened, without the secrets that were in it."""

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest
import structlog

from loom.activities.adapters.redaction.mask import SecretMask
from loom.composition.logs import configure_logs
from tests.commands import logs_as_they_were
from tests.corpora.secrets.making import ALNUM, Maker

MAKER = Maker(8)
OWN = MAKER.password() + "/" + MAKER.password()
WITH_OWN = SecretMask([OWN])


@pytest.fixture
def log_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator["pytest.CaptureFixture[str]"]:
    with logs_as_they_were(monkeypatch):
        yield capsys


@pytest.mark.parametrize("style", ["json", "console"])
def test_no_secret_gets_into_a_log(log_lines: pytest.CaptureFixture[str], style: str) -> None:
    token = "gh" + "p_" + MAKER.of(ALNUM, 36)
    configure_logs(style=style, redact=WITH_OWN.redact)  # type: ignore[arg-type]
    log = structlog.get_logger("loom.test")
    try:
        int(f"refused {OWN}")
    except ValueError:
        log.exception(
            "failed", url=f"redis://:{MAKER.safe_password()}@cache", nested={"a": [token]}, password="aB3$xK9!q"
        )
    logging.getLogger("elsewhere").warning("sent %s", token)
    written = log_lines.readouterr().err
    assert [secret for secret in (OWN, token, "aB3$xK9!q") if secret in written] == []
    assert written.count("[REDACTED]") == 5
    if style == "json":
        assert [json.loads(line)["event"] for line in written.splitlines()] == ["failed", "sent [REDACTED]"]


@pytest.mark.parametrize(
    ("is_terminal", "environment", "has_colors"),
    [(True, {}, True), (False, {}, False), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False)],
)
def test_only_a_terminal_gets_colors(
    is_terminal: bool, environment: dict[str, str], has_colors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.StringIO()
    monkeypatch.setattr(written, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", written)
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with logs_as_they_were(monkeypatch):
        configure_logs(style="console")
        structlog.get_logger("loom.test").warning("told", seconds=3)
    assert "told" in written.getvalue()
    assert ("\x1b" in written.getvalue()) is has_colors
