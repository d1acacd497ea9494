"""Chats over HTTP: begun at one service, continued and read at another."""

from base64 import b64encode
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from loom.serve.access.roles import Role
from loom.testing.model_server import ToolUse, calls, script, text
from loom.testing.waiting import eventually
from tests.integration.serve.conftest import Serving
from tests.integration.serve.served import Served, events_in

WRITE = calls(ToolUse("write_file", {"path": "a.txt", "content": "new\n"}))


async def said(api: Served, http: Any, path: str, **body: Any) -> Any:
    """Send a message of a chat, which belongs to the test's workspace."""
    answer = await http.post(f"/v1/chats/{path}/messages", json={"workspace": str(api.loom.workspace), **body})
    assert answer.status_code == 200, answer.text
    api.loom.started.append(answer.json()["chat"])
    return answer.json()


async def test_a_chat_begins_at_one_service_and_goes_on_at_another(serving: Serving) -> None:
    api = await serving(script([text("Hello Ann."), WRITE, text("Done."), text("A new start.")]))
    here, there = api.http, await api.replica()
    owner = {"tenant": "acme", "user_id": "ann"}
    chat = "a%2Fb%20日"  # the name of the session is `a/b 日`
    note = {"data": b64encode(b"a note").decode(), "name": "a.txt"}

    first = await said(api, here, chat, text="My name is Ann.", message_id="m-1", **owner)
    again = await said(api, there, chat, text="My name is Ann.", message_id="m-1", **owner)
    assert again["chat"] == first["chat"] == first["run_id"] == "chat-acme%3Aann%3Aa%2Fb 日"
    assert await api.loom.client.started_by(first["chat"]) == "root"
    answer = await there.get(f"/v1/chats/{chat}/messages/m-1", params={"wait": 60, **owner})
    assert (answer.status_code, answer.json()["answer"]["output"]) == (200, "Hello Ann.")

    rules = {"write_file": "ask"}
    put = f"/v1/runs/{first['chat'].replace('%', '%25').replace('/', '%2F')}"
    assert (await here.post(f"{put}/permissions", json={"rules": rules})).status_code == 200
    second = await said(api, there, chat, text="Write it.", **owner)
    unanswered = await here.get(f"/v1/chats/{chat}/messages/{second['message_id']}", params=owner)
    assert (unanswered.status_code, unanswered.json()) == (202, {"handling": "answering", "answer": None})
    ask = await api.asked(first["chat"])
    assert (await here.post(f"{put}/approve", json={"call_id": ask["call_id"]})).json()["accepted"] is True
    async with there.stream("GET", f"{put}/events", params={"from": second["offset"]}) as events:
        seen = []
        async for event in events_in(events):
            seen.append(event.data)
            if event.data["action"] == "node.answer":
                break
    assert second["message_id"] in seen[-1]["parameters"]["message_ids"]
    assert seen[-1]["result"]["output"] == "Done."

    conversation = (await here.get(f"/v1/chats/{chat}/messages", params=owner)).json()
    assert [each["content"] for each in conversation["messages"] if each["role"] == "user"] == [
        "My name is Ann.",
        "Write it.",
    ]
    listed = (await there.get("/v1/chats", params={"tenant": "acme", "tasks": True})).json()
    (entry,) = (each for each in listed["chats"] if each["run_id"] == first["chat"])
    assert (entry["session"], entry["user_id"]) == ("a/b 日", "ann")
    assert listed["tasks"][first["chat"]] == "My name is Ann."
    assert (await there.post(f"{put}/abort")).json()["accepted"] is True
    third = await said(api, here, chat, text="Are you there?", parts=[note], **owner)
    reply = await here.get(f"/v1/chats/{chat}/messages/{third['message_id']}", params={"wait": 60, **owner})
    assert reply.json()["answer"]["output"] == "A new start."


async def test_a_message_that_is_answered_beside_the_chat_is_found_by_its_id(serving: Serving) -> None:
    api = await serving(script([WRITE, text("Beside it."), text("Done.")]))
    busy = await said(api, api.http, "s", text="Write.", permissions={"write_file": "ask"})
    ask = await api.asked(busy["chat"])
    beside = await said(api, api.http, "s", text="How are you?", when_busy="own_run", message_id="b/1")
    assert beside["handling"] == "own_run"
    assert beside["run_id"] != beside["chat"]
    answer = await api.http.get("/v1/chats/s/messages/b%2F1", params={"wait": 60})
    assert answer.json()["answer"]["output"] == "Beside it."
    unknown = await api.http.get("/v1/chats/s/messages/b%2F2", params={"wait": 60})
    assert (unknown.status_code, unknown.json()["title"]) == (404, "MessageNotFoundError")
    chats = (await api.http.get("/v1/chats")).json()["chats"]
    assert beside["run_id"] not in [each["run_id"] for each in chats]
    await api.http.post(f"/v1/runs/{busy['chat']}/approve", json={"call_id": ask["call_id"]})


async def test_a_chat_is_its_tenants_own(serving: Serving) -> None:
    api = await serving(script([text("Hello.")], repeat_last=True))
    tenant = f"acme-{uuid4().hex[:8]}"
    ann, eve = [await api.with_token("x", Role.OPERATOR, tenant=each) for each in (tenant, "evil")]
    sent = await said(api, ann, "s", text="A secret.")
    assert sent["chat"] == f"chat-{tenant}%3A%3As"
    assert (await ann.get("/v1/chats/s/messages", params={"tenant": tenant})).status_code == 200
    assert [each["run_id"] for each in (await ann.get("/v1/chats")).json()["chats"]] == [sent["chat"]]

    for params in ({}, {"tenant": tenant}):
        assert (await eve.get("/v1/chats", params=params)).json()["chats"] == []
        for path in ("/v1/chats/s/messages", f"/v1/chats/s/messages/{sent['message_id']}"):
            assert (await eve.get(path, params=params)).status_code == 404
    body = {"text": "hello", "tenant": tenant}
    assert (await eve.post("/v1/chats/s/messages", json=body)).status_code == 403
    for given in ({"mode": "accept-edits"}, {"permissions": {"bash": "allow"}}):
        assert (await ann.post("/v1/chats/s/messages", json={"text": "x", **given})).status_code == 403
    for stored in ({"parts": [{"digest": "0" * 64}]}, {"workspace": {"archive": {"digest": "0" * 64}}}):
        assert (await ann.post("/v1/chats/s/messages", json={"text": "x", **stored})).status_code == 403
    # A run without a tenant that has the id of a chat of the tenant isn't the tenant's chat.
    taken = await api.http.post("/v1/runs", json={"task": "x", "run_id": f"chat-{tenant}%3A%3At", "chat": True})
    assert taken.status_code == 201, taken.text
    api.loom.started.append(taken.json()["run_id"])
    assert (await ann.post("/v1/chats/t/messages", json={"text": "x"})).status_code == 422
    missing = await ann.get("/v1/chats/t/messages")
    assert (missing.status_code, missing.json()["detail"]) == (404, "there is no chat of the session 't'")


async def test_costs_are_added_up_by_day_for_the_runs_that_the_caller_sees(serving: Serving) -> None:
    api = await serving(script([text("done")], repeat_last=True))
    tenant = f"acme-{uuid4().hex[:8]}"
    ann = await api.with_token("ann", Role.VIEWER, tenant=tenant)
    await api.result(await api.start(tenant=tenant, session_id="s"))
    await api.result(await api.start())

    async def counted(**params: str) -> list[Any]:
        answer = await ann.get("/v1/costs", params=params)
        assert answer.status_code == 200, answer.text
        return [(each["name"], each["runs"]) for each in answer.json()["groups"]]

    async def has_ended() -> bool:
        return all(name for name, _ in await counted(by="day"))

    await eventually(has_ended)
    assert await counted(by="day", since="1h") == [(datetime.now(UTC).date().isoformat(), 1)]
    assert await counted(by="session") == [("s", 1)]
    assert await counted(by="tenant", tenant=tenant) == [(tenant, 1)]
    assert await counted(by="tenant", tenant="other") == []
    assert await counted(since="0001-01-02") == await counted()
    for wrong in ({"by": "colour"}, {"since": "yesterday"}, {"tenant": "'"}):
        assert (await api.http.get("/v1/costs", params=wrong)).status_code == 422
