"""Loom's agents over A2A, as the protocol's official client sees them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import httpx2
import pytest
from a2a.client import A2AClientError, AgentCardResolutionError, Client, ClientConfig, create_client
from a2a.helpers import get_artifact_text, get_data_parts, get_message_text, new_data_part, new_text_part
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import InvalidParamsError, TaskNotCancelableError, TaskNotFoundError, UnsupportedOperationError

from loom.domain.agents.worker_catalog import WorkerCatalog
from loom.serve.access.roles import Role as AccessRole
from loom.serve.caller_runs import CallerRuns
from loom.testing.model_server import ToolUse, calls, script, text
from tests.acceptance.conftest import Working, working
from tests.integration.serve.conftest import Serving
from tests.integration.serve.processes import serve_process
from tests.integration.serve.served import Served

__all__ = ["working"]

WRITE = ToolUse("write_file", {"path": "a.txt", "content": "new\n"})
QUESTION = ToolUse("ask_user", {"question": "Which colour?"})


@asynccontextmanager
async def client_of(
    url: str, headers: Any = None, *, agent: str = "default", streaming: bool = True
) -> AsyncIterator[Client]:
    """The official client of an agent, made from the agent's card."""
    async with httpx.AsyncClient(headers=headers, timeout=60) as http:
        config = ClientConfig(httpx_client=http, streaming=streaming)
        yield await create_client(f"{url}/v1/agents/{agent}/a2a", config)


def user(client: httpx2.AsyncClient) -> dict[str, str]:
    """The header with a person's token."""
    return {"Authorization": client.headers["Authorization"]}


def message(*parts: Part | str, task: Task | None = None, **fields: Any) -> SendMessageRequest:
    said = [new_text_part(part) if isinstance(part, str) else part for part in parts]
    if task is not None:
        fields = {"task_id": task.id, "context_id": task.context_id, **fields}
    return SendMessageRequest(message=Message(message_id=uuid4().hex, role=Role.ROLE_USER, parts=said, **fields))


async def events(stream: AsyncIterator[StreamResponse], api: Served | None = None) -> list[StreamResponse]:
    """Read a stream to its end."""
    seen = [event async for event in stream]
    if api is not None and seen[0].task.id not in api.loom.started:
        api.loom.started.append(seen[0].task.id)
    return seen


def answer_in(seen: list[StreamResponse]) -> str:
    """The text of the result, as a client puts it together."""
    told = ""
    for update in [event.artifact_update for event in seen if event.HasField("artifact_update")]:
        assert update.artifact.artifact_id == "result"
        told = (told if update.append else "") + get_artifact_text(update.artifact)
    return told


def progress_in(seen: list[StreamResponse]) -> list[str]:
    updates = [event.status_update.status for event in seen if event.HasField("status_update")]
    return [get_message_text(each.message) for each in updates if each.state == TaskState.TASK_STATE_WORKING]


async def test_a_client_starts_a_run_follows_it_answers_and_gets_the_result(serving: Serving) -> None:
    api = await serving(script([calls(WRITE, text="I write"), calls(QUESTION), text("all done", chunks=3)]))
    async with client_of(api.url, user(api.http)) as client:
        first = await events(client.send_message(message("write a file")), api)
        task = first[0].task
        assert task.status.state == TaskState.TASK_STATE_SUBMITTED
        assert answer_in(first) == "I write"
        asked = first[-1].status_update.status
        assert asked.state == TaskState.TASK_STATE_INPUT_REQUIRED
        assert get_message_text(asked.message).startswith("write_file: ")
        (call,) = get_data_parts(asked.message.parts)
        assert (call["tool"], call["arguments"]) == ("write_file", {"path": "a.txt", "content": "new\n"})

    await api.move()
    async with client_of(api.url, user(api.http)) as client:
        second = await events(client.send_message(message("approve", task=task)))
        assert (second[0].task.id, second[0].task.context_id) == (task.id, task.context_id)
        assert "tool result write_file" in progress_in(second)
        asked = second[-1].status_update.status
        assert (asked.state, get_message_text(asked.message)) == (TaskState.TASK_STATE_INPUT_REQUIRED, "Which colour?")

        third = await events(client.send_message(message("Blue", task=task)))
        assert third[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
        assert answer_in(third) == "all done"

        ended = await client.get_task(GetTaskRequest(id=task.id))
        assert ended.status.state == TaskState.TASK_STATE_COMPLETED
        assert [get_artifact_text(each) for each in ended.artifacts] == ["all done"]
        with pytest.raises(UnsupportedOperationError, match="has ended"):
            await events(client.send_message(message("more", task=task)))
    assert (api.loom.workspace / "a.txt").read_text() == "new\n"


async def test_a_client_denies_a_call_and_cancels_a_task(serving: Serving) -> None:
    api = await serving(script([calls(WRITE), text("as you like"), calls(QUESTION)]))
    async with client_of(api.url, user(api.http), streaming=False) as client:
        asks = message("write a file", context_id="talk")
        (waiting,) = await events(client.send_message(asks), api)
        (again,) = await events(client.send_message(asks))  # the same message starts nothing
        assert again.task.id == waiting.task.id
        (call,) = get_data_parts(waiting.task.status.message.parts)
        denial = {"approved": False, "reason": "write elsewhere", "call_id": call["call_id"]}
        with pytest.raises(InvalidParamsError, match="contextId"):
            await events(client.send_message(message("deny", task=waiting.task, context_id="other")))
        with pytest.raises(InvalidParamsError, match="approve"):
            await events(client.send_message(message("perhaps", task=waiting.task)))
        with pytest.raises(InvalidParamsError, match="approved: Field required"):
            await events(client.send_message(message(new_data_part({}), task=waiting.task)))
        (ended,) = await events(client.send_message(message(new_data_part(denial), task=waiting.task)))

        started = message("ask me")
        started.configuration.CopyFrom(SendMessageConfiguration(return_immediately=True))
        (begun,) = await events(client.send_message(started), api)
        assert begun.task.status.state == TaskState.TASK_STATE_SUBMITTED
        cancelled = await client.cancel_task(CancelTaskRequest(id=begun.task.id))
        assert cancelled.status.state == TaskState.TASK_STATE_CANCELED
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(CancelTaskRequest(id=begun.task.id))
    assert (await api.result(begun.task.id))["status"] == "aborted"
    assert (ended.task.status.state, ended.task.context_id) == (TaskState.TASK_STATE_COMPLETED, "talk")
    assert [get_artifact_text(each) for each in ended.task.artifacts] == ["as you like"]
    said = [each.text for each in await api.loom.client.transcript(ended.task.id)]
    assert any("write elsewhere" in each for each in said)
    assert not (api.loom.workspace / "a.txt").exists()


async def test_a_client_resubscribes_after_the_service_was_killed(working: Working, tmp_path: Path) -> None:
    loom, _ = await working(script([calls(WRITE, text="I write"), text("all done", chunks=3)]))
    with serve_process(loom.settings, tmp_path) as service:
        seen: list[StreamResponse] = []

        async def follow_until_killed(client: Client) -> None:
            async for event in client.send_message(message("write a file")):
                seen.append(event)
                if answer_in(seen) == "I write":
                    service.kill()

        async with client_of(await service.url()) as client:
            with pytest.raises(A2AClientError):
                await follow_until_killed(client)
    task = seen[0].task
    loom.started.append(task.id)
    with serve_process(loom.settings, tmp_path) as service:
        url = await service.url()
        async with client_of(url) as watching, client_of(url, streaming=False) as client:
            seen = []
            async for event in watching.subscribe(SubscribeToTaskRequest(id=task.id)):
                seen.append(event)
                if TaskState.TASK_STATE_INPUT_REQUIRED in (event.task.status.state, event.status_update.status.state):
                    waits = await client.get_task(GetTaskRequest(id=task.id))
                    assert waits.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
                    await events(client.send_message(message("approve", task=task)))
    assert seen[0].task.context_id == task.context_id
    assert seen[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
    assert answer_in(seen) == "all done"


async def test_a_task_belongs_to_its_tenant_and_each_request_has_the_rights_of_its_token(serving: Serving) -> None:
    api = await serving(script([calls(WRITE), text("done")], repeat_last=True))
    people = {
        "owner": await api.with_token("ann", AccessRole.OPERATOR, tenant="acme"),
        "approver": await api.with_token("abe", AccessRole.APPROVER, tenant="acme"),
        "viewer": await api.with_token("vic", AccessRole.VIEWER, tenant="acme"),
        "stranger": await api.with_token("eve", AccessRole.ADMIN, tenant="evil"),
    }
    async with client_of(api.url, user(people["owner"]), streaming=False) as owner:
        (waits,) = await events(owner.send_message(message("write", context_id="plan")), api)
        assert (waits.task.context_id, waits.task.id[:5]) == ("plan", "acme:")
        with pytest.raises(A2AClientError, match="403"):
            await events(owner.send_message(message("approve", task=waits.task)))
    async with client_of(api.url, user(people["viewer"]), streaming=False) as viewer:
        assert (await viewer.get_task(GetTaskRequest(id=waits.task.id))).context_id == "plan"
        with pytest.raises(A2AClientError, match="403"):
            await events(viewer.send_message(message("start")))
    async with client_of(api.url, user(people["stranger"])) as stranger:
        for refused in (
            stranger.get_task(GetTaskRequest(id=waits.task.id)),
            stranger.cancel_task(CancelTaskRequest(id=waits.task.id)),
            events(stranger.subscribe(SubscribeToTaskRequest(id=waits.task.id))),
            events(stranger.send_message(message("approve", task=waits.task))),
        ):
            with pytest.raises(TaskNotFoundError) as error:
                await refused
            assert "plan" not in str(error.value.data)
    async with client_of(api.url, user(people["approver"]), streaming=False) as approver:
        (ended,) = await events(approver.send_message(message("approve", task=waits.task)))
        assert ended.task.status.state == TaskState.TASK_STATE_COMPLETED
    assert await api.loom.client.started_by(waits.task.id) == "ann"


async def test_the_card_says_what_workers_say_about_the_agent(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def catalogs(runs: CallerRuns) -> tuple[WorkerCatalog, ...]:
        del runs
        return (WorkerCatalog(agents=({"name": "support", "description": "Pays orders back."},)),)

    monkeypatch.setattr(CallerRuns, "catalogs", catalogs)
    api = await serving(script([]))
    address = f"{api.url}/v1/agents/support/a2a"
    card = (await api.http.get(f"{address}/.well-known/agent-card.json")).json()
    assert (card["name"], card["description"]) == ("support", "Pays orders back.")
    assert [each["url"] for each in card["supportedInterfaces"]] == [address]
    with pytest.raises(AgentCardResolutionError, match="422"):
        async with client_of(api.url, user(api.http), agent="suport"):
            pass
    public = (await api.anonymous.get("/.well-known/agent-card.json")).json()
    assert (public["name"], list(public["securitySchemes"])) == ("default", ["token"])
    assert (await api.anonymous.get(f"{address}/.well-known/agent-card.json")).status_code == 401
