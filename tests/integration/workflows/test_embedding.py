"""Loom inside a program that has workflows of its own: `loom.worker`, and `LoomPlugin` on a client or a worker."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter, DefaultPayloadConverter, PayloadCodec
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

import loom
from loom import Ask, Deny, LoomApp, LoomClient, LoomPlugin, RunInfo, RunStatus, Settings, Task, errors
from loom.testing.harness import HANGS_AFTER, Addresses, settings_for
from loom.testing.model_server import ModelServer, ToolUse, calls, script, text
from loom.testing.waiting import eventually
from loom.workflows.event_order import InHistoryOrder
from loom.workflows.payload_converter import SparsePayloadConverter, converter_for
from tests.integration.workflows.embedded_workflows import Nightly, Note, decorate


class Ledger:
    """Something that a worker opens once."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.is_open = True


def app_with(ledger: Ledger) -> LoomApp:
    """An app with a tool, hooks and a handler that all write into the ledger."""
    app = LoomApp()

    @app.provide
    async def open_ledger() -> AsyncIterator[Ledger]:
        ledger.entries.append("opened")
        yield ledger
        ledger.is_open = False
        ledger.entries.append("closed")

    @app.tool(effect="read")
    async def look_up(article: str, ledger: Ledger) -> str:
        """Look something up."""
        ledger.entries.append(f"tool {article}")
        return f"{article}: 3"

    @app.on_start
    def begins(run: RunInfo, ledger: Ledger) -> Deny | Ask | None:
        ledger.entries.append(f"start {run.task}")
        return None

    @app.on_task("node.complete", name=f"embedded-{uuid4().hex[:8]}")
    async def heard(task: Task, ledger: Ledger) -> None:
        ledger.entries.append(f"heard {task.action}")

    return app


LOOKS_UP = [calls(ToolUse("look_up", {"article": "tea"})), text("It costs three.")]


async def test_one_call_serves_runs_and_workflows_of_your_own(addresses: Addresses, workspace: Path) -> None:
    ledger = Ledger()
    async with ModelServer(script(LOOKS_UP)) as model:
        settings = settings_for(addresses, workspace, model)
        async with loom.worker(settings, app=app_with(ledger), workflows=[Nightly], activities=[decorate]) as worker:
            note = await worker.client.execute_workflow(
                Nightly.run, "What is tea?", id=f"nightly-{uuid4().hex[:8]}", task_queue=worker.task_queue
            )
            assert note == Note(text="[It costs three.]")

            async def heard() -> bool:
                return "heard node.complete" in ledger.entries

            await eventually(heard)
    assert ledger.entries == ["opened", "start What is tea?", "tool tea", "heard node.complete", "closed"]


@pytest.mark.parametrize("on", ["client", "worker"])
async def test_the_plugin_serves_runs_in_a_worker_that_is_there(addresses: Addresses, workspace: Path, on: str) -> None:
    ledger = Ledger()
    async with ModelServer(script(LOOKS_UP * 2)) as model:
        settings = settings_for(addresses, workspace, model)
        plugin = LoomPlugin(settings, app=app_with(ledger))
        client = await Client.connect(
            addresses.temporal, namespace=addresses.namespace, plugins=[plugin] if on == "client" else []
        )
        async with Worker(
            client,
            task_queue=settings.task_queue,
            workflows=[Nightly],
            activities=[decorate],
            plugins=[plugin] if on == "worker" else [],
        ):
            ours = LoomClient(client, task_queue=settings.task_queue)
            note = await client.execute_workflow(
                Nightly.run, "What is tea?", id=f"nightly-{uuid4().hex[:8]}", task_queue=settings.task_queue
            )
            assert note == Note(text="[It costs three.]")
            run_id = await ours.start("What is tea?", permissions={"look_up": "allow"})
            assert (await ours.result(run_id)).status is RunStatus.COMPLETED
        assert (ledger.entries[0], ledger.entries[-1], ledger.is_open) == ("opened", "closed", False)


async def test_a_client_with_the_plugin_may_have_several_workers(addresses: Addresses, workspace: Path) -> None:
    async with ModelServer(script([text("Yes.")] * 2)) as model:
        settings = settings_for(addresses, workspace, model)
        client = await Client.connect(addresses.temporal, namespace=addresses.namespace, plugins=[LoomPlugin(settings)])
        other = f"{settings.task_queue}-other"
        async with Worker(client, task_queue=settings.task_queue), Worker(client, task_queue=other):
            for queue in (settings.task_queue, other):
                ours = LoomClient(client, task_queue=queue)
                assert (await ours.result(await ours.start("Is it?"))).output == "Yes."


class Unreachable:
    """Cannot be made."""


def failing_app() -> LoomApp:
    """An app whose factory fails."""
    app = LoomApp()

    @app.provide
    def connect() -> Unreachable:
        raise ConnectionError("no route to the database")

    return app


async def test_a_factory_that_fails_stops_the_start(addresses: Addresses, workspace: Path) -> None:
    async with ModelServer(script([])) as model:
        settings = settings_for(addresses, workspace, model)
        with pytest.raises(
            errors.BadRequest, match="Unreachable cannot be provided because .*connect.*no route to the data"
        ):
            async with loom.worker(settings, app=failing_app()):
                pytest.fail("started")


async def test_a_factory_that_fails_stops_a_worker_that_is_there(addresses: Addresses, workspace: Path) -> None:
    async with ModelServer(script([])) as model:
        settings = settings_for(addresses, workspace, model)
        client = await Client.connect(addresses.temporal, namespace=addresses.namespace)
        worker = Worker(client, task_queue=settings.task_queue, plugins=[LoomPlugin(settings, app=failing_app())])
        with pytest.raises(errors.BadRequest, match="no route to the database"):
            # A worker whose start fails, and which does not say that it has stopped, is waited for without an end.
            async with asyncio.timeout(HANGS_AFTER), worker:
                await asyncio.Event().wait()


async def test_a_key_that_runs_could_read_is_refused(addresses: Addresses, workspace: Path) -> None:
    settings = Settings(workspace=workspace, home=workspace / ".loom", signing_key=workspace / "keys/loom.pem")
    client = await Client.connect(addresses.temporal, namespace=addresses.namespace)
    with pytest.raises(errors.BadRequest, match=r"runs could read the key .*/keys/loom\.pem"):
        Worker(client, task_queue="refused", plugins=[LoomPlugin(settings)])
    assert not (workspace / "keys").exists()


async def test_a_task_queue_that_no_list_filter_can_name_is_refused(addresses: Addresses, workspace: Path) -> None:
    client = await Client.connect(addresses.temporal, namespace=addresses.namespace)
    for queue in ("it's", "back\\slash", "a' OR TaskQueue = 'b"):
        with pytest.raises(errors.BadRequest, match="the task queue .* must not contain a quote"):
            Worker(client, task_queue=queue, plugins=[LoomPlugin(Settings(workspace=workspace))])


async def test_what_a_worker_sets_itself_stays(addresses: Addresses, workspace: Path) -> None:
    async with ModelServer(script([])) as model:
        settings = settings_for(addresses, workspace, model, max_concurrent_activities=7)
        client = await Client.connect(addresses.temporal, namespace=addresses.namespace)
        plain = Worker(client, task_queue=settings.task_queue, plugins=[LoomPlugin(settings)])
        other = f"{settings.task_queue}-other"
        chosen = Worker(client, task_queue=other, plugins=[LoomPlugin(settings)], max_concurrent_activities=3)
        assert plain.config(active_config=True)["max_concurrent_activities"] == 7
        assert chosen.config(active_config=True)["max_concurrent_activities"] == 3
        runner = UnsandboxedWorkflowRunner()
        unsandboxed = Worker(
            client, task_queue=f"{other}-unsandboxed", plugins=[LoomPlugin(settings)], workflow_runner=runner
        )
        chosen_runner = unsandboxed.config(active_config=True)["workflow_runner"]
        assert isinstance(chosen_runner, InHistoryOrder)
        assert chosen_runner.runner is runner


class Codec(PayloadCodec):
    """A team's encryption."""

    async def encode(self, payloads: Any) -> list[Payload]:
        """As it is."""
        return list(payloads)

    async def decode(self, payloads: Any) -> list[Payload]:
        """As it is."""
        return list(payloads)


class Foreign(DefaultPayloadConverter):
    """A converter of a team's own."""


def test_a_codec_stays_and_only_the_payload_converter_is_loom_s() -> None:
    codec = Codec()
    for given in (DataConverter.default, pydantic_data_converter):
        made = converter_for(replace(given, payload_codec=codec))
        assert (made.payload_codec, made.payload_converter_class) == (codec, SparsePayloadConverter)
    assert converter_for(made) is made


def test_a_payload_converter_of_another_kind_is_refused() -> None:
    with pytest.raises(errors.BadRequest, match=r"payload converter, Foreign, does not support Loom's values"):
        converter_for(DataConverter(payload_converter_class=Foreign))


def test_values_of_other_workflows_are_written_whole() -> None:
    (payload,) = SparsePayloadConverter().to_payloads([Note(text="t")])
    assert payload.data == b'{"text":"t","author":"nobody"}'


def test_settings_come_from_the_environment_unless_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_TASK_QUEUE", "from-the-environment")
    assert LoomPlugin()._settings.task_queue == "from-the-environment"
    assert LoomPlugin(Settings(task_queue="given"))._settings.task_queue == "given"
