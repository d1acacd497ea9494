"""The approvals of all faces name the call and its digest, also if the caller's request doesn't."""

from a2a.helpers import get_data_parts, new_data_part

from loom.testing.model_server import ToolUse, calls, script, text
from tests.approvals import decisions
from tests.integration.serve.conftest import Serving
from tests.integration.serve.test_a2a import client_of, events, message, user
from tests.integration.serve.test_mcp_server import content, over_http


def write(number: int) -> ToolUse:
    return ToolUse("write_file", {"path": f"{number}.txt", "content": "new\n"}, f"w{number}")


async def test_http_and_mcp_fill_in_what_a_request_does_not_name(serving: Serving) -> None:
    api = await serving(script([*(calls(write(number)) for number in range(4)), text("done")]))
    run_id = await api.start()
    digests = [(await api.asked(run_id))["digest"]]

    approved = await api.http.post(f"/v1/runs/{run_id}/approve")
    await api.loom.until(run_id, lambda status: [ask["call_id"] for ask in status["pending_approvals"]] == ["w1"])
    digests.append((await api.asked(run_id))["digest"])
    await api.http.post(f"/v1/runs/{run_id}/approve", json={"call_id": "w1"})
    await api.loom.until(run_id, lambda status: [ask["call_id"] for ask in status["pending_approvals"]] == ["w2"])
    digests.append((await api.asked(run_id))["digest"])
    async with over_http(api, api.http) as mcp:
        assert content(await mcp.call_tool("approve_call", {"run_id": run_id, "call_id": "w2"}))["accepted"]
    await api.loom.until(run_id, lambda status: [ask["call_id"] for ask in status["pending_approvals"]] == ["w3"])
    denied = await api.http.post(f"/v1/runs/{run_id}/deny")

    assert (approved.json()["call_id"], approved.json()["tool"]) == ("w0", "write_file")
    assert (denied.json()["call_id"], denied.json()["tool"]) == ("w3", "write_file")
    await api.result(run_id)
    sent = decisions(await api.loom.histories(run_id))
    named = [(each["call_id"], each.get("digest")) for each in sent]
    assert named == [("w0", digests[0]), ("w1", digests[1]), ("w2", digests[2]), ("w3", None)]


async def test_a2a_fills_in_the_digest_of_the_call_that_a_message_names(serving: Serving) -> None:
    api = await serving(script([calls(write(0)), text("done")]))
    async with client_of(api.url, user(api.http), streaming=False) as client:
        (waiting,) = await events(client.send_message(message("write a file")), api)
        (call,) = get_data_parts(waiting.task.status.message.parts)
        decision = new_data_part({"approved": True, "call_id": call["call_id"]})
        await events(client.send_message(message(decision, task=waiting.task)))
    (sent,) = decisions(await api.loom.histories(waiting.task.id))
    assert (sent["call_id"], sent["digest"]) == ("w0", call["digest"])
