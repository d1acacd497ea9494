"""The services of root's stack have users of their own, few capabilities, and no commands for administrators.

The stack's home is one of an earlier release, in which `nobody` and root owned what the services now own.
"""

import os
import pwd
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import redis

from loom.stack import up_down as stack
from loom.stack.errors import StackError
from loom.stack.home import log_path
from loom.stack.plan import Plan
from loom.stack.ports import choose
from loom.stack.postgres import _create
from loom.stack.processes import spawn, wait_until
from loom.stack.services import temporal, temporal_database
from loom.stack.state import StackState
from loom.stack.users import ROOT, give, nobody, user_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")

SERVICES = ("temporal", "redis", "postgres")
DAC_READ_SEARCH, DAC_OVERRIDE = 1 << 2, 1 << 1
DOCKER_S = (
    "chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+net_raw,+sys_chroot,+mknod,"
    "+audit_write,+setfcap"
)
"""The capabilities of root in a container, by Docker's default."""
SHOWN_AS_A_SERVICE = """
import os
from loom.stack.users import SEARCH, as_user
command = (*as_user(2_100_000_000, SEARCH), "cat", "/proc/self/status")
os.execv(command[0], command)
"""
REACHES = """
for process in $PROCESSES; do kill -0 $process && echo "signals $process"; done
for file in $FILES; do (: < $file) && echo "reads $file"; (: >> $file) && echo "writes $file"; done
"""
OF_ADMINISTRATORS = (
    "CONFIG GET dir",
    "CONFIG SET dir /etc",
    "CONFIG SET dbfilename crontab",
    "CONFIG SET maxmemory 1mb",
    "CONFIG REWRITE",
    "SAVE",
    "MODULE LIST",
    "MODULE LOAD /tmp/x.so",
    "DEBUG SLEEP 0",
    "ACL SETUSER other on nopass ~* +@all",
    "REPLICAOF 127.0.0.1 1",
    "MIGRATE 127.0.0.1 1 key 0 10",
    "MONITOR",
    "SHUTDOWN NOSAVE",
)


@dataclass(frozen=True)
class Started:
    home: Path
    state: StackState

    def process(self, name: str) -> psutil.Process:
        return psutil.Process(self.state.parts[name].pid)

    def user(self, name: str) -> int:
        return int(self.process(name).uids().real)


def fields(status: str) -> dict[str, str]:
    """Return the contents of a file such as /proc/self/status."""
    return dict(line.split(":\t", 1) for line in status.splitlines())


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    home = tmp_path_factory.mktemp("stack") / ".loom"
    for folder in ("logs", "redis"):
        (home / folder).mkdir(parents=True)
    _create(home, home / "postgres")
    assert (home / "postgres").stat().st_uid == nobody()
    (home / "redis" / "redis.conf").write_text("requirepass secret")
    (home / "redis" / "dump.rdb").touch()
    yield Started(home=home, state=stack.up_detached(Plan(home=home, worker=None)))
    stack.down(home)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_runs_as_a_user_that_nothing_else_uses_and_has_no_rights_that_it_does_not_need(
    started: Started, name: str
) -> None:
    process, user = started.process(name), started.user(name)
    assert set(process.uids()) == set(process.gids()) == {user}
    assert user not in {ROOT, nobody()}
    with pytest.raises(KeyError):
        pwd.getpwuid(user)
    own = {process.pid, *(child.pid for child in process.children(recursive=True))}
    assert {each.pid for each in psutil.process_iter(["uids"]) if user in (each.info["uids"] or ())} <= own
    status = fields(Path(f"/proc/{process.pid}/status").read_text())
    kept = 0 if name == "redis" else (int(status["CapBnd"], 16) & DAC_READ_SEARCH) or DAC_OVERRIDE
    assert [int(status[f"Cap{kind}"], 16) for kind in ("Eff", "Prm", "Inh", "Amb")] == [kept] * 4
    assert (status["Groups"].strip(), status["NoNewPrivs"]) == ("", "1")


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_has_stored_belongs_to_its_user_also_in_the_home_of_an_earlier_release(
    started: Started, name: str
) -> None:
    folder = started.home / name
    assert {path.lstat().st_uid for path in (folder, *folder.rglob("*"))} == {started.user(name)}
    assert not (started.home / "redis" / "redis.conf").exists()
    assert (started.home / "redis.conf").stat().st_mode & 0o777 == 0o600


def test_another_user_can_neither_signal_the_services_nor_open_their_shared_memory(started: Started) -> None:
    users = {started.user(name) for name in SERVICES}
    shared = [str(path) for path in Path("/dev/shm").glob("PostgreSQL.*") if path.stat().st_uid in users]
    pids = [str(started.process(name).pid) for name in SERVICES]
    assert shared
    done = subprocess.run(
        ["sh", "-c", REACHES],
        env={"PROCESSES": " ".join(pids), "FILES": " ".join(shared), "PATH": os.environ["PATH"]},
        user=nobody(), group=nobody(), extra_groups=[], cwd="/", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == ""
    denied = (done.stderr.count("Operation not permitted"), done.stderr.count("Permission denied"))
    assert denied == (len(pids), 2 * len(shared))


def test_workers_can_do_nothing_in_redis_that_only_administrators_need(started: Started) -> None:
    with redis.Redis.from_url(str(started.state.parts["redis"].address)) as client:
        for command in OF_ADMINISTRATORS:
            with pytest.raises(redis.ResponseError, match=r"no permissions|not allowed"):
                client.execute_command(*command.split())
        with pytest.raises(redis.ResponseError, match="ACL failure in script|can't run this command"):
            client.eval("return redis.call('SWAPDB', 0, 1)", 0)


def test_an_id_is_kept_until_somebody_else_uses_it(tmp_path: Path) -> None:
    first = user_of(tmp_path)
    assert first is not None
    assert first not in {ROOT, nobody()}
    os.chown(tmp_path, first, first)
    assert user_of(tmp_path) == first
    with subprocess.Popen(["sleep", "600"], user=first, group=first, extra_groups=[]) as other:
        try:
            assert user_of(tmp_path) not in {first, ROOT, nobody()}
        finally:
            other.kill()
    os.chown(tmp_path, 1234, 1234)
    assert user_of(tmp_path) == 1234  # the folder of a person


@pytest.mark.parametrize("owner", [2_100_000_000, nobody()])
@pytest.mark.parametrize("is_named", [False, True])
def test_a_folder_is_not_taken_away_from_a_server_that_still_uses_it(
    tmp_path: Path, owner: int, is_named: bool
) -> None:
    folder, copy = tmp_path / "postgres", tmp_path / "copy"
    for each in (folder, copy):
        each.mkdir()
        os.chown(each, owner, owner)
    named, inside = (str(folder / "file"), "/") if is_named else ("server", folder)
    with subprocess.Popen(
        ["sh", "-c", "read line", named],
        stdin=subprocess.PIPE, user=owner, group=owner, extra_groups=[], cwd=inside,
    ) as server:  # fmt: skip
        try:
            assert user_of(folder) == owner
            assert user_of(copy) not in {owner, ROOT, nobody()}
        finally:
            server.kill()


@pytest.mark.parametrize(
    ("root_s", "kept"),
    [
        ("-dac_read_search", DAC_OVERRIDE),
        (f"-all,+{DOCKER_S}", DAC_OVERRIDE),
        ("-dac_read_search,-dac_override", 0),
    ],
)
def test_a_service_gets_the_narrowest_capability_that_root_itself_has(root_s: str, kept: int) -> None:
    done = subprocess.run(
        ["setpriv", "--bounding-set", root_s, "--inh-caps", "+chown", "--", sys.executable, "-c", SHOWN_AS_A_SERVICE],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    status = fields(done.stdout)
    assert [int(status[f"Cap{kind}"], 16) for kind in ("Eff", "Prm", "Amb")] == [kept] * 3


def test_what_an_earlier_release_has_stored_as_root_is_handed_over_but_nothing_that_is_also_elsewhere(
    tmp_path: Path,
) -> None:
    folder, outside = tmp_path / "redis", tmp_path / "outside"
    (folder / "appendonlydir").mkdir(parents=True)
    user = user_of(folder)
    assert user is not None
    os.chown(folder, user, user)
    outside.touch()
    (folder / "appendonlydir" / "aof").touch()
    (folder / "symbolic").symlink_to(outside)
    (folder / "hard").hardlink_to(outside)
    give(folder, user)
    owned = {path.name: path.lstat().st_uid for path in folder.rglob("*")}
    assert owned == {"appendonlydir": user, "aof": user, "symbolic": user, "hard": ROOT}
    assert outside.stat().st_uid == ROOT


def test_temporal_s_database_of_an_earlier_release_is_moved_with_what_its_server_had_not_yet_merged(
    tmp_path: Path,
) -> None:
    before = tmp_path / "temporal.db"
    with closing(sqlite3.connect(before)) as writing:
        writing.executescript("PRAGMA journal_mode=wal; CREATE TABLE kept AS SELECT 1 AS number")
        assert temporal_database(tmp_path) == before
        temporal(tmp_path, {"temporal": 1, "ui": 2}, "default").prepare()
        now = temporal_database(tmp_path)
        assert before.is_symlink()
        assert before.samefile(now)
        assert len(list(now.parent.glob("temporal.db*"))) == 3
        assert {path.stat().st_uid for path in (now.parent, *now.parent.iterdir())} == {user_of(now)}
        with closing(sqlite3.connect(now)) as reading:
            assert reading.execute("SELECT number FROM kept").fetchall() == [(1,)]


def test_a_second_database_of_temporal_is_neither_ignored_nor_overwritten(tmp_path: Path) -> None:
    before, now = tmp_path / "temporal.db", tmp_path / "temporal" / "temporal.db"
    now.parent.mkdir()
    part = temporal(tmp_path, {"temporal": 1, "ui": 2}, "default")
    for each in (before, now):
        each.write_text("database")
    part.prepare()
    assert before.is_symlink()  # the copy that a program has made which follows symbolic links
    before.unlink()
    before.write_text("backup")  # of an earlier release
    with pytest.raises(StackError, match="different databases"):
        part.prepare()
    assert (before.read_text(), now.read_text()) == ("backup", "database")


@pytest.mark.slow
def test_a_private_server_that_runs_as_its_own_user_ends_with_its_network(tmp_path: Path) -> None:
    home = tmp_path / "h"
    (home / "logs").mkdir(parents=True)
    ports = {"temporal": choose("temporal", None, ()), "ui": choose("ui", None, ())}
    part = temporal(home, ports, "default", private=True)
    part.prepare()
    network = spawn(part.command, log=log_path(home, "temporal"), env=part.env)
    try:
        assert wait_until(lambda: part.answers(network.identity.started), seconds=30)
        (server,) = psutil.Process(network.identity.pid).children()
        assert server.uids().real == (home / "temporal").stat().st_uid != ROOT
    finally:
        assert network.child is not None
        network.child.send_signal(signal.SIGKILL)
        network.child.wait()
    psutil.wait_procs([server], timeout=10)
    assert not server.is_running()
