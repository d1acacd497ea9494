"""The HTTP API: start, watch, decide, and read."""

import asyncio

import httpx2

from loom.testing.model_server import ToolUse, calls, script, text
from loom.testing.waiting import eventually
from tests.integration.serve.conftest import Serving
from tests.integration.serve.served import Event, events_in, listening_service

WRITE = calls(ToolUse("write_file", {"path": "a.txt", "content": "new\n"}))


async def test_a_run_is_started_watched_and_read(serving: Serving) -> None:
    api = await serving(script([text("done")]))
    run_id = await api.start()
    events = await api.events(run_id)
    assert [events[0].data["action"], events[-2].data["action"], events[-1].type] == [
        "node.start",
        "node.complete",
        "end",
    ]
    assert [event.id for event in events[:-1]] == [str(event.data["offset"]) for event in events[:-1]]
    assert (await api.result(run_id))["output"] == "done"
    assert (await api.http.get(f"/v1/runs/{run_id}")).json()["status"] == "completed"


async def test_a_service_that_stops_ends_its_streams_which_go_on_at_another(serving: Serving) -> None:
    api = await serving(script([WRITE, text("done")]))
    run_id = await api.start(permissions={"write_file": "ask"})
    ask = await api.asked(run_id)
    seen: list[Event] = []

    async def watch(url: str) -> None:
        resumed = {"Last-Event-ID": str(seen[-1].id)} if seen else {}
        headers = {"Authorization": api.http.headers["authorization"], **resumed}
        async with (
            httpx2.AsyncClient(base_url=url, timeout=60, headers=headers) as http,
            http.stream("GET", f"/v1/runs/{run_id}/events") as answer,
        ):
            async for event in events_in(answer):
                seen.append(event)  # noqa: PERF401 - as they come

    async def has_asked() -> bool:
        return any(event.data.get("action") == "node.approval_requested" for event in seen)

    async with listening_service(api.loom.settings) as (_, url):
        watching = asyncio.create_task(watch(url))
        await eventually(has_asked)
    await watching  # a stream that the server has cut off would raise an error
    assert seen[-1].type == "message"
    result = asyncio.create_task(api.result(run_id))
    there = await api.replica()
    assert (await there.post(f"/v1/runs/{run_id}/approve", json={"call_id": ask["call_id"]})).status_code == 200
    await watch(api.url)
    assert [event.id for event in seen[:-1]] == [str(number) for number in range(1, len(seen))]
    assert seen[-1].type == "end"
    assert (await result)["output"] == "done"


async def test_a_misspelt_field_or_rule_is_answered_with_the_one_that_was_meant(serving: Serving) -> None:
    api = await serving(script([]))

    async def said(**body: object) -> tuple[int, str]:
        answer = await api.http.post("/v1/runs", json={"task": "x", **body})
        return answer.status_code, answer.json()["detail"]

    assert await said(agnet="x") == (422, "agnet is not a known field, did you mean 'agent'?")
    archive = {"archive": {"data": "x", "nmae": "y"}}
    assert await said(workspace=archive) == (
        422,
        "workspace.archive.nmae is not a known field, did you mean 'workspace.archive.name'?",
    )
    assert await said(workspace={"archive": "x"}) == (422, "workspace.archive must be an object")
    assert await said(budget={"tokns": 1}) == (422, "budget.tokns is not a known field, did you mean 'budget.tokens'?")
    assert await said(run_id="@1") == (422, "the run's id '@1' begins with @, as the names of other runs do")


async def test_every_route_refuses_a_query_parameter_that_it_does_not_have(serving: Serving) -> None:
    api = await serving(script([]))
    paths = (await api.http.get("/openapi.json")).json()["paths"]
    own = [
        (method, path, operation)
        for path, item in paths.items()
        if path.startswith("/v1/") and "/a2a" not in path
        for method, operation in item.items()
    ]
    assert len(own) > 20
    for method, path, operation in own:
        answer = await api.http.request(method, path, params={"zzz": "1"}, json={} if method == "post" else None)
        assert (answer.status_code, answer.json()["field"]) == (422, "zzz"), (method, path)
        assert "there is no query parameter 'zzz'; " in answer.json()["detail"]
        for each in operation.get("parameters", ()):
            if each["in"] == "query":
                said = (await api.http.request(method, path, params={f"{each['name']}x": "1"})).json()["detail"]
                assert said.endswith(f"; did you mean {each['name']!r}?")
    assert (await api.http.get("/healthz", params={"probe": "1"})).status_code == 200


async def test_a_text_with_which_a_worker_would_stand_still_is_refused(serving: Serving) -> None:
    api = await serving(script([text("done")]))
    long, run = "x" * 1_000_001, f"/v1/runs/{await api.start()}"
    for path, body in (
        ("/v1/runs", {"task": long}),
        ("/v1/runs", {"metadata": {"a": long}, "task": "x"}),
        ("/v1/chats/s/messages", {"text": long}),
        (f"{run}/messages", {"text": long}),
        (f"{run}/approve", {"arguments": {"a": long}}),
        (f"{run}/deny", {"reason": long}),
        (f"{run}/abort", {"reason": long}),
        (f"{run}/permissions", {"rules": {long: "deny"}}),
        (f"{run}/retry", {"message": long}),
        (f"{run}/fork", {"message": long, "turn": 0}),
    ):
        answer = await api.http.post(path, json=body)
        assert (answer.status_code, answer.json()["field"]) == (422, next(iter(body))), (path, answer.text)


async def test_an_id_with_other_letters_is_encoded_in_the_address_of_its_run(serving: Serving) -> None:
    api = await serving(script([text("done")]))
    body = {"task": "do it", "workspace": str(api.loom.workspace), "run_id": "日報"}
    answer = await api.http.post("/v1/runs", json=body)
    assert (answer.status_code, answer.headers["location"]) == (201, "/v1/runs/%E6%97%A5%E5%A0%B1")
    api.loom.started.append(answer.json()["run_id"])
    assert (await api.http.get(f"{answer.headers['location']}/result?wait=60")).json()["status"] == "completed"


async def test_many_who_ask_whether_the_service_is_ready_cost_one_look_at_the_servers(serving: Serving) -> None:
    api = await serving(script([text("done")]))
    answers = await asyncio.gather(*(api.anonymous.get("/readyz") for _ in range(20)))
    assert {each.text for each in answers} == {answers[0].text}
    assert answers[0].json() == {"ok": True, "parts": {"temporal": True, "redis": True, "postgres": True}}


async def test_methods_that_clients_invent_are_counted_together(serving: Serving) -> None:
    api = await serving(script([text("done")]))
    for method in ("BREW", "WHEN"):
        assert (await api.http.request(method, "/healthz")).status_code == 405
    counted = (await api.http.get("/metrics")).text
    assert 'method="other"' in counted
    assert "BREW" not in counted


async def test_a_pending_write_is_listed_with_its_diff_and_approved(serving: Serving) -> None:
    api = await serving(script([WRITE, text("done")]))
    (api.loom.workspace / "a.txt").write_text("old\n")
    run_id = await api.start(permissions={"write_file": "ask"})

    ask = await api.asked(run_id)
    assert ask["tool"] == "write_file"
    assert ask["change"].splitlines()[-2:] == ["-old", "+new"]
    answer = await api.http.post(
        f"/v1/runs/{run_id}/approve", json={"call_id": ask["call_id"], "digest": ask["digest"]}
    )
    assert answer.json()["accepted"] is True
    assert (await api.result(run_id))["status"] == "completed"
    events = await api.events(run_id)
    decided = next(
        event.data for event in events if event.type == "message" and event.data["action"] == "node.approval_decided"
    )
    assert decided["parameters"]["by"] == "root"


async def test_an_id_that_no_filter_can_name_hides_no_other_run(serving: Serving) -> None:
    api = await serving(script([text("done")], repeat_last=True))
    run_id = await api.start()
    odd = f"odd\0{run_id}"  # only a client of Temporal can choose it
    assert (await api.http.post("/v1/runs", json={"task": "x", "run_id": odd})).status_code == 422
    temporal, queue = api.loom.client.temporal, api.loom.settings.task_queue
    await temporal.execute_workflow("AgentRun", {"task": "x"}, id=odd, task_queue=queue)
    await api.result(run_id)
    assert (await api.http.get("/v1/runs")).status_code == 200
    for name in ("\0", "\\", "'"):
        assert (await api.http.get("/v1/approvals", params={"tenant": name})).status_code == 422
