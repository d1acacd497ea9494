"""What `deploy/` says of a worker is true of this code."""

import configparser
import re
from pathlib import Path
from typing import Final

import pytest
from dotenv import dotenv_values
from pydantic import AliasChoices

from loom.composition.load_settings import read_settings
from loom.composition.settings import Settings

DEPLOY: Final = Path(__file__).parents[3] / "deploy"
EXAMPLE: Final = DEPLOY / "worker.env.example"


def _variables() -> set[str]:
    found: set[str] = set()
    for name, field in Settings.model_fields.items():
        alias = field.validation_alias
        found |= {str(each) for each in alias.choices} if isinstance(alias, AliasChoices) else {f"LOOM_{name.upper()}"}
    return found


def test_each_variable_of_the_example_is_a_setting() -> None:
    named = set(re.findall(r"^#?([A-Z_]+)=", EXAMPLE.read_text(encoding="utf-8"), re.MULTILINE))
    assert len(named) > 20
    assert named <= _variables()


def test_the_example_is_an_environment_that_a_worker_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values = {name: value for name, value in dotenv_values(EXAMPLE).items() if value}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    settings = read_settings()
    assert settings.temporal_address == values["TEMPORAL_ADDRESS"]
    assert settings.redis_url == values["LOOM_REDIS_URL"]


def test_the_unit_keeps_what_the_example_names_writable() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.read(DEPLOY / "loom-worker.service", encoding="utf-8")
    service = unit["Service"]
    folders = {f"/var/lib/{name}" for name in service["StateDirectory"].split()}
    values = dotenv_values(EXAMPLE)
    assert {values["LOOM_HOME"], values["LOOM_WORKSPACE"]} <= folders
    assert service["ExecStart"].endswith("/bin/loom worker")
    assert service["RestartPreventExitStatus"] == "2"
