"""Write memory in a separate process beside the worker, so that memory takes no time from the worker's runs.

    worker:   wait for tasks on the bus ──▶ start the process ──▶ read its messages until it ends ──▶ wait again
    process:  take tasks from the bus and store them ──▶ end when no task has arrived for a minute

The process gets its settings as one line of JSON on standard input. It ends when standard input closes, and therefore
when its worker dies. It writes its log to the worker, and tells it when the last task of a run has been stored. If the
process dies, the worker starts it again. The bus still has its tasks.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final, cast

import structlog
from pydantic import TypeAdapter

from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.activities.adapters.postgres.person_facts import PostgresPersonFacts
from loom.activities.adapters.postgres.scoped_memory import PostgresScopedMemory
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.consumer import ANSWER_SECONDS, RedisInbox
from loom.activities.encryption import PLAIN, Cipher
from loom.activities.memory.person_facts import learn_by_rule
from loom.activities.memory.ports import PersonFactStore, ScopedMemory
from loom.activities.memory.writer import GROUP, After, MemoryWriter, patiently, share_tasks
from loom.composition.logs import configure_logs
from loom.domain.core.tasks import FINAL_ACTIONS, Task
from loom.domain.memory.layers import MemorySettings

_log = structlog.get_logger("loom.memory")

IDLE: Final = 60.0
"""Longer than the time after which a writer takes over the tasks of a dead one."""
LOOK_EVERY: Final = 0.5
"""Seconds between two looks at the bus while the process isn't running."""
_STABLE: Final = 10.0
"""A process that has run for so many seconds is started again at once."""
_LONGEST_PAUSE: Final = 30.0
_NICE: Final = 5
_ENDED: Final = b"a run has ended\n"
_LINE_LIMIT: Final = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryProcess:
    """What the process needs to know."""

    redis_url: str
    database_url: str
    limits: MemorySettings
    encryption_keys: Path | None = None
    log_level: str = "INFO"
    idle: float = IDLE
    """Seconds without tasks after which the process ends."""


_SETTINGS: Final = TypeAdapter(MemoryProcess)


@asynccontextmanager
async def memory_process(settings: MemoryProcess, run_ended: Callable[[], None]) -> AsyncIterator[None]:
    """Store the tasks on the bus while the body is running. `run_ended` is called after the last task of a run has been
    stored.
    """
    supervisor = asyncio.create_task(_supervise(settings, run_ended))
    supervisor.add_done_callback(_tell_end)
    try:
        yield
    finally:
        supervisor.cancel()
        await asyncio.wait({supervisor})


def _tell_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("memory_writer_ended", exc_info=error)


async def _supervise(settings: MemoryProcess, run_ended: Callable[[], None]) -> None:
    async with aclosing(RedisInbox(RedisConnection(settings.redis_url), GROUP)) as inbox:
        pause = LOOK_EVERY
        while True:
            if not await patiently(inbox.has_tasks):
                await asyncio.sleep(LOOK_EVERY)
                continue
            begun = monotonic()
            try:
                why = await _run(settings, run_ended)
            except (OSError, ValueError) as error:  # for example, the machine has no room for another process
                why = str(error)
            if why:
                _log.warning("memory_writer_died", why=why)
                pause = LOOK_EVERY if monotonic() - begun > _STABLE else min(_LONGEST_PAUSE, 2 * pause)
                await asyncio.sleep(pause)


async def _run(settings: MemoryProcess, run_ended: Callable[[], None]) -> str:
    """Run the process until it ends. Return why it died, or an empty string if it ended by itself."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", __name__),
        stdin=PIPE,
        stdout=PIPE,
        stderr=STDOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        limit=_LINE_LIMIT,
    )
    to, out = cast("asyncio.StreamWriter", process.stdin), cast("asyncio.StreamReader", process.stdout)
    try:
        with suppress(OSError):  # it has died already
            to.write(_SETTINGS.dump_json(settings) + b"\n")
            await to.drain()
        async for line in out:
            if line == _ENDED:
                run_ended()
            else:
                _log_again(line)
        code = await process.wait()
        return f"exit code {code}" if code else ""
    finally:
        if process.returncode is None:
            process.kill()
            await asyncio.shield(asyncio.ensure_future(process.wait()))


def _log_again(line: bytes) -> None:
    """Log a line of the process in the format of the worker."""
    try:
        said = json.loads(line)
        level, name = logging.getLevelNamesMapping()[said.pop("level").upper()], said.pop("logger")
    except (ValueError, KeyError, AttributeError):  # for example, the interpreter's last words
        said, level, name = {"event": line.decode(errors="replace").rstrip()}, logging.ERROR, "loom.memory"
    said.pop("timestamp", None)
    structlog.get_logger(name).log(level, **said)


def main() -> None:
    """Write memory until no task has arrived for a while, or until the worker ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the worker
    with suppress(OSError):
        os.nice(_NICE)
    given = _SETTINGS.validate_json(sys.stdin.buffer.readline())
    configure_logs(given.log_level)
    asyncio.run(_write(given))


async def _write(given: MemoryProcess) -> None:
    async with (
        _opened_cipher(given) as cipher,
        aclosing(Database(given.database_url, name="memory", cipher=cipher)) as database,
        aclosing(
            RedisInbox(RedisConnection(given.redis_url, answer_within=ANSWER_SECONDS, cipher=cipher), GROUP)
        ) as inbox,
    ):
        scoped, people = PostgresScopedMemory(database), PostgresPersonFacts(database, settings=given.limits)
        after = after_storing(scoped, people, lambda: os.write(1, _ENDED))
        writer = MemoryWriter(inbox, PostgresMemory(database, settings=given.limits), after)
        writing = asyncio.create_task(writer.run(idle=given.idle))
        worker = asyncio.create_task(_end_of_input())
        await asyncio.wait({writing, worker}, return_when=asyncio.FIRST_COMPLETED)
        for task in (writing, worker):
            task.cancel()
        await asyncio.wait({writing, worker})
    if not writing.cancelled():
        writing.result()


@asynccontextmanager
async def _opened_cipher(given: MemoryProcess) -> AsyncIterator[Cipher]:
    """Yield the cipher of the stores. `loom.composition.encryption` also encrypts Temporal's payloads, and importing it
    would take another 19 MB and half a second.
    """
    if given.encryption_keys is None:
        yield PLAIN
        return
    from loom.activities.adapters.encryption.cipher import AesGcmCipher  # noqa: PLC0415 - most processes have no keys
    from loom.activities.adapters.encryption.data_keys import DataKeys  # noqa: PLC0415
    from loom.activities.adapters.encryption.key_ring import KeyRing  # noqa: PLC0415
    from loom.activities.adapters.encryption.run_tenants import RunTenants  # noqa: PLC0415

    async with aclosing(Database(given.database_url, max_connections=2, name="loom-keys")) as database:
        yield AesGcmCipher(DataKeys(KeyRing(given.encryption_keys), database), RunTenants())


def after_storing(scoped: ScopedMemory, people: PersonFactStore, run_ended: Callable[[], object]) -> After:
    """Return what the memory writer does with the tasks that it has stored."""

    async def after(tasks: Sequence[Task]) -> None:
        await share_tasks(scoped, tasks)
        await learn_by_rule(people, tasks)
        if any(task.action in FINAL_ACTIONS for task in tasks):
            run_ended()

    return after


async def _end_of_input() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


if __name__ == "__main__":
    main()
