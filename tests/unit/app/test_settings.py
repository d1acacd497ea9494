"""Settings: where values come from, which one wins, and how a wrong one is refused."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from loom.composition.load_settings import load_settings, misspelled_variables, read_settings
from loom.composition.settings import Settings
from loom.composition.temporal_connection import connect
from loom.domain.core.errors import BadRequest, UnreachableError
from loom.domain.core.tenants import TenantLimits
from loom.domain.permissions.bounds import Bounds
from loom.domain.permissions.judge import Mode
from loom.stack import found_home, state, up_down
from loom.stack.errors import StackError, UnreadableState
from loom.stack.home import locked
from loom.stack.processes import end, spawn
from loom.stack.state import Recorded, StackState

ADDRESSES = {"temporal": "127.0.0.1:7299", "postgres": "postgresql://x@127.0.0.1/loom", "redis": "redis://127.0.0.1/0"}


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without files, in an environment without settings."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith(("LOOM_", "TEMPORAL_", "OPENAI_", "ANTHROPIC_")):
            monkeypatch.delenv(name)
    return tmp_path


def test_everything_has_a_default(empty_directory: Path) -> None:
    settings = load_settings()
    assert settings.temporal_address == "localhost:7233"
    assert settings.database_url is None
    assert settings.model is None
    assert settings.home == empty_directory / ".loom"
    assert settings.workspace == empty_directory
    assert settings.metrics_port == 9091


def test_no_command_sees_the_clones_of_other_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_settings().home in read_settings().clones_folder.parents
    monkeypatch.setenv("LOOM_RUN_WORKSPACES", "/srv/clones")

    assert read_settings().clones_folder == Path("/srv/clones")
    assert Path("/srv/clones") in read_settings().private_paths


def test_loops_are_stopped_and_answers_not_rated_unless_somebody_says_otherwise(empty_directory: Path) -> None:
    assert (read_settings().loop_window, read_settings().evaluation) == (5, "off")


def test_environment_beats_dotenv_beats_toml(empty_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (empty_directory / "loom.toml").write_text('model = "demo"\nmax_turns = 7\ntemporal_address = "toml:1"\n')
    (empty_directory / ".env").write_text("LOOM_MAX_TURNS=8\nTEMPORAL_ADDRESS=dotenv:2\nOTHERS=ignored\n")
    monkeypatch.setenv("TEMPORAL_ADDRESS", "environment:3")
    settings = read_settings()
    assert (settings.model, settings.max_turns, settings.temporal_address) == ("demo", 8, "environment:3")


@pytest.mark.parametrize("variable", ["TEMPORAL_ADDRESS", "LOOM_TEMPORAL_ADDRESS"])
def test_temporal_s_own_variables_are_heard_with_and_without_prefix(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "there:7233")
    assert read_settings().temporal_address == "there:7233"


@pytest.mark.parametrize(
    ("variable", "notes"),
    [
        ("LOOM_MODLE", ["LOOM_MODLE is not a setting; did you mean LOOM_MODEL?"]),
        ("LOOM_WORKSPACE", []),
        ("LOOM_TEMPORAL_ADDRESS", []),
        ("LOOM_OF_THE_TEAM", []),
    ],
)
def test_a_variable_that_is_almost_a_setting_is_named(
    variable: str, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "x")
    assert misspelled_variables() == notes


def test_a_variable_set_to_nothing_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_MODEL", "")
    assert read_settings().model is None


@pytest.mark.parametrize(("name", "text"), [(".env", "LOOM_SANDBOX=off\n"), ("loom.toml", 'sandbox = "off"\n')])
def test_no_file_that_an_agent_could_write_switches_the_sandbox_off(
    name: str, text: str, empty_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (empty_directory / name).write_text(text)
    with pytest.raises(BadRequest, match="LOOM_SANDBOX is not read from .env|only the environment itself"):
        read_settings()
    (empty_directory / ".env").unlink(missing_ok=True)
    monkeypatch.setenv("LOOM_SANDBOX", "off")
    assert read_settings().sandbox == "off"


@pytest.mark.parametrize(
    "name",
    [
        "LOOM_APP",
        "LOOM_TENANTS",
        "loom_packages",
        "LOOM_FETCH_ALLOW",
        "LOOM_SANDBOX_MEMORY",
        "LOOM_HOME",
        "LOOM_WORKSPACE",
        "LOOM_WORKSPACES",
        "LOOM_MAX_MODE",
        "LOOM_SANDBOX_READABLE",
        "LOOM_CREWS",
        "LOOM_NOTIFY_COMMAND",
    ],
)
def test_what_loads_code_or_opens_a_guard_is_not_taken_from_dotenv(name: str, empty_directory: Path) -> None:
    (empty_directory / ".env").write_text(f"{name}=1\n")
    with pytest.raises(BadRequest, match=f"{name} is not read from .env: export it"):
        read_settings()


def test_limits_of_tenants_come_from_a_table_and_are_checked(empty_directory: Path) -> None:
    (empty_directory / "loom.toml").write_text(
        "[tenants.acme]\nruns = 3\nusd_per_day = 2.5\n[tenants.default]\nruns = 1"
    )
    assert read_settings().tenants == {"acme": TenantLimits(runs=3, usd_per_day=2.5), "default": TenantLimits(runs=1)}

    for table, told in (
        ('[tenants."a b"]', "'a b' is not a valid name for a tenant"),
        ("[tenants.acme]\nruns = 0", "acme.runs must be a positive number"),
        ("[tenants.acme]\nusd_per_day = nan", "acme.usd_per_day must be a positive number"),
        (
            "[tenants.acme]\nruns_per_day = 1",
            "unknown limit acme.runs_per_day; known: runs, tokens",
        ),
    ):
        (empty_directory / "loom.toml").write_text(table)
        with pytest.raises(BadRequest, match=told):
            read_settings()


def test_a_worker_serves_its_own_workspace_and_edits_unless_it_is_told_more(
    empty_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_settings().bounds == Bounds(roots=(str(empty_directory.resolve()),), max_mode=Mode.ACCEPT_EDITS)
    monkeypatch.setenv("LOOM_WORKSPACE", "/one")
    assert read_settings().roots == (Path("/one"),)
    monkeypatch.setenv("LOOM_WORKSPACES", f"/two{os.pathsep}three")
    monkeypatch.setenv("LOOM_MAX_MODE", "bypass")
    assert read_settings().bounds == Bounds(roots=("/two", str(empty_directory.resolve() / "three")))


def test_a_link_opens_no_folder_to_commands(empty_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise what is hidden below the folder could be seen below the link."""
    (empty_directory / "real/inside").mkdir(parents=True)
    (empty_directory / "link").symlink_to("real")
    monkeypatch.setenv("LOOM_SANDBOX_READABLE", "link/inside")
    with pytest.raises(BadRequest, match=r"LOOM_SANDBOX_READABLE: .*link/inside leads through a link: .*real/inside"):
        read_settings()


@pytest.mark.parametrize("value", [os.pathsep, os.pathsep * 2])
def test_a_worker_that_would_serve_no_workspace_does_not_start(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_WORKSPACES", value)
    with pytest.raises(BadRequest, match="LOOM_WORKSPACES: must name at least one folder"):
        read_settings()


def test_servers_and_openings_are_read_from_the_file(empty_directory: Path) -> None:
    (empty_directory / "loom.toml").write_text('fetch_allow = "wiki.corp, 10.0.0.0/8"\n[mcp.time]\ncommand = ["x"]\n')
    settings = read_settings()
    assert (settings.fetch_allow, list(settings.mcp)) == (("wiki.corp", "10.0.0.0/8"), ["time"])


def test_metrics_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_METRICS_PORT", "off")
    assert read_settings().metrics_port is None


def test_a_deployment_needs_a_build_unless_it_is_off(empty_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (empty_directory / "loom.toml").write_text('deployment = "shop"\n')
    with pytest.raises(BadRequest, match="LOOM_BUILD: must be set together with LOOM_DEPLOYMENT"):
        read_settings()
    monkeypatch.setenv("LOOM_BUILD", "1.4.0+abc")
    assert (read_settings().deployment, read_settings().build) == ("shop", "1.4.0+abc")
    monkeypatch.setenv("LOOM_DEPLOYMENT", "off")
    assert read_settings().deployment is None


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LOOM_MAX_TURNS", "many"),
        ("LOOM_TOOL_TIMEOUT", "0"),
        ("LOOM_SANDBOX", "maybe"),
        ("LOOM_LOG_LEVEL", "LOUD"),
        ("LOOM_DATABASE_URL", "mysql://host/x"),
        ("LOOM_REDIS_URL", "localhost:6379"),
        ("LOOM_METRICS_PORT", "70000"),
        ("TEMPORAL_ADDRESS", "http://localhost:7233"),
        ("OPENAI_BASE_URL", "localhost"),
        ("LOOM_DEPLOYMENT", "shop.eu"),
        ("LOOM_NOTIFY_URL", "mailto:ann@example.com"),
        ("LOOM_NOTIFY_SECRET", "whsec_c2hvcnQ="),
        ("LOOM_NOTIFY_COMMAND", "tee 'unfinished"),
        ("LOOM_NOTIFY_ON", "ask,test"),
        ("LOOM_BUILD", "1:2"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_variable(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(BadRequest, match=f"^{variable}: ") as refused:
        read_settings()
    assert refused.value.context["field"] == variable

    monkeypatch.delenv(variable)
    given: dict[str, Any] = {variable.removeprefix("LOOM_").lower(): value}
    with pytest.raises(BadRequest, match=f"^{re.escape(refused.value.message)}$"):
        Settings(**given)


@pytest.mark.parametrize(
    ("text", "says"), [('modle = "demo"\n', "unknown setting modle"), ("model = \n", "cannot be read")]
)
def test_a_misspelt_or_broken_toml_file_is_refused(text: str, says: str, empty_directory: Path) -> None:
    (empty_directory / "loom.toml").write_text(text)
    with pytest.raises(BadRequest, match=says):
        read_settings()


def test_an_argument_that_is_not_a_setting_is_refused() -> None:
    misspelt: dict[str, Any] = {"temporal_adress": "localhost:7233"}
    with pytest.raises(BadRequest, match="no field 'temporal_adress': did you mean 'temporal_address'") as refused:
        Settings(**misspelt)
    assert refused.value.context["field"] == "temporal_adress"


def test_a_field_of_a_subclass_can_be_given_by_its_alias() -> None:
    class Own(Settings):
        shelf: str = Field(default="", alias="OWN_SHELF")
        desk: str = Field(default="", validation_alias="OWN_DESK")

    given: dict[str, Any] = {"OWN_SHELF": "a", "OWN_DESK": "b"}
    own = Own(**given)
    assert (own.shelf, own.desk) == ("a", "b")


def test_secrets_do_not_show_in_the_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hush")
    monkeypatch.setenv("LOOM_DATABASE_URL", "postgresql://u:hush@h/d")
    settings = read_settings()
    assert "hush" not in repr(settings)
    assert settings.openai_api_key is not None
    assert settings.openai_api_key.get_secret_value() == "sk-hush"


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().max_turns = 3  # type: ignore[misc]


def _stack_of(pid: int, started: float, home: Path) -> None:
    home.mkdir()
    parts = {name: Recorded(pid=pid, started=started, address=address) for name, address in ADDRESSES.items()}
    state.write(home, StackState(parts=parts))


def test_addresses_that_nobody_set_come_from_the_running_stack(
    empty_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _stack_of(os.getpid(), state.of_pid(os.getpid()).started, empty_directory / ".loom")
    monkeypatch.setenv("LOOM_REDIS_URL", "redis://mine/1")
    settings = load_settings()
    assert settings.temporal_address == ADDRESSES["temporal"]
    assert settings.database_url == ADDRESSES["postgres"]
    assert settings.redis_url == "redis://mine/1"


def test_a_server_that_is_down_keeps_its_address(empty_directory: Path) -> None:
    (empty_directory / ".loom").mkdir()
    state.write(empty_directory / ".loom", StackState(ports={"temporal": 45233, "redis": 45379}))

    settings = load_settings()

    assert (settings.temporal_address, settings.redis_url) == ("127.0.0.1:45233", None)


def test_a_stack_that_no_longer_runs_is_not_believed(empty_directory: Path) -> None:
    _stack_of(os.getpid(), 1.0, empty_directory / ".loom")
    assert load_settings().temporal_address == "localhost:7233"


def test_the_stack_is_found_from_any_folder_below_it(empty_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _stack_of(os.getpid(), state.of_pid(os.getpid()).started, empty_directory / ".loom")
    below = empty_directory / "src" / "deep"
    (below / ".loom").mkdir(parents=True)  # a worker of another server leaves such a folder, without a stack
    monkeypatch.chdir(below)

    assert load_settings().home == empty_directory / ".loom"
    assert load_settings().temporal_address == ADDRESSES["temporal"]

    monkeypatch.setenv("LOOM_HOME", str(below / ".loom"))
    assert load_settings().home == below / ".loom"


def test_a_stack_in_the_home_directory_is_found_from_everywhere(
    empty_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere = empty_directory / "me", empty_directory / "elsewhere"
    for folder in (home, elsewhere):
        folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(elsewhere)
    assert load_settings().home == elsewhere / ".loom"

    _stack_of(os.getpid(), state.of_pid(os.getpid()).started, home / ".loom")

    assert load_settings().home == home / ".loom"


def test_the_stack_of_another_user_is_not_used(empty_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _stack_of(os.getpid(), state.of_pid(os.getpid()).started, empty_directory / ".loom")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setattr(found_home, "ROOT", 4712)

    assert state.read(empty_directory / ".loom") == StackState()
    assert load_settings().temporal_address == "localhost:7233"
    with pytest.raises(StackError, match="belongs to another user"):
        up_down.down(empty_directory / ".loom")


@pytest.mark.parametrize(
    "written", ["", "x{", "[]", "{}", '{"version": 9}', '{"supervisor": {"id": 1}}', "\ufeff", "null"]
)
def test_a_stack_whose_record_cannot_be_read_is_named_with_its_processes(
    empty_directory: Path, written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = empty_directory / ".loom"
    (home / "logs").mkdir(parents=True)
    (home / "stack.json").write_text(written)
    uses: tuple[Callable[[], object], ...] = (load_settings, lambda: up_down.down(home))
    for use in uses:
        with pytest.raises(UnreadableState, match=r"None of its processes is running: delete the file"):
            use()

    worker = spawn(("sleep", "600"), log=home / "logs/worker.log", env=os.environ)
    try:
        for use in uses:
            with pytest.raises(
                UnreadableState, match=rf"worker \({worker.identity.pid}\)\. `kill {worker.identity.pid}`"
            ):
                use()
        assert worker.alive()
    finally:
        end("worker", worker)

    for variable, part in (
        ("TEMPORAL_ADDRESS", "temporal"),
        ("LOOM_DATABASE_URL", "postgres"),
        ("LOOM_REDIS_URL", "redis"),
    ):
        monkeypatch.setenv(variable, ADDRESSES[part])
    assert load_settings().temporal_address == ADDRESSES["temporal"]


def test_the_supervisor_of_an_unreadable_record_is_who_to_stop(empty_directory: Path) -> None:
    home = empty_directory / ".loom"
    home.mkdir()
    (home / "stack.json").write_text("")
    with locked(home), pytest.raises(UnreadableState, match=rf"`kill {os.getpid()}` stops them all"):
        state.read(home)


async def test_without_an_address_no_server_is_tried(empty_directory: Path) -> None:
    with pytest.raises(UnreachableError, match=f"no Temporal server is configured, and {empty_directory}/.loom has no"):
        await connect(load_settings())
