"""Files of runs over HTTP: what is listed, downloaded and uploaded, by whom, and what the audit log has of it."""

from pathlib import Path

from loom.serve.access.roles import Role
from loom.testing.model_server import script, text
from tests.integration.serve.conftest import Serving
from tests.integration.serve.served import listening_service
from tests.integration.serve.test_audit import rows_of


async def test_operators_list_and_download_files_and_approvers_also_upload_them(
    serving: Serving, workspace: Path
) -> None:
    api = await serving(script([text("done")]), audit="on")
    run_id = await api.start()
    await api.result(run_id)
    files = f"/v1/runs/{run_id}/files"
    operator, viewer = await api.with_token("otto", Role.OPERATOR), await api.with_token("vera", Role.VIEWER)
    approver = await api.with_token("abe", Role.APPROVER)

    put = await approver.put(f"{files}/sub/a%20%C3%A4.bin", content=b"\x00\xff")
    assert (put.status_code, put.json()) == (
        200,
        {"path": "sub/a ä.bin", "bytes": 2, "is_new": True, "note": ""},
    )
    assert (workspace / "sub" / "a ä.bin").read_bytes() == b"\x00\xff"
    listed = await operator.get(files, params={"path": "sub"})
    assert listed.json() == {
        "entries": [{"path": "sub/a ä.bin", "kind": "file", "bytes": 2}],
        "left_out": 0,
        "note": "",
    }
    got = await operator.get(f"{files}/sub%2Fa%20%C3%A4.bin")
    assert (got.content, got.headers["content-disposition"]) == (
        b"\x00\xff",
        "attachment; filename*=UTF-8''a%20%C3%A4.bin",
    )
    folder = await operator.get(f"{files}/sub")
    assert (folder.headers["content-type"], folder.content[:2]) == ("application/gzip", b"\x1f\x8b")
    assert (folder.headers["cache-control"], folder.headers["x-content-type-options"]) == ("no-store", "nosniff")
    whole = await operator.get(f"{files}/")
    assert whole.headers["content-disposition"].endswith(f"''{run_id}.tar.gz")
    other = await approver.put(f"{files}/n%ff.txt", content=b"")
    assert (other.status_code, "isn't UTF-8" in other.json()["detail"]) == (422, True)
    missing = await operator.get(f"{files}/none")
    assert (missing.status_code, missing.json()["title"]) == (404, "NoSuchFileError")

    for refused in (viewer.get(files), viewer.get(f"{files}/sub"), operator.put(f"{files}/x", content=b"")):
        assert (await refused).status_code == 403

    recorded = await rows_of(api.loom, 1, run_id=run_id, by="abe")
    assert [(each.act, each.subject) for each in recorded if each.act != "refuse"] == [("write_file", "sub/a ä.bin")]


async def test_files_of_another_tenant_s_run_do_not_exist(serving: Serving) -> None:
    api = await serving(script([text("done")]))
    run_id = await api.start(tenant="acme")
    await api.result(run_id)
    theirs = await api.with_token("ann", Role.ADMIN, tenant="acme")
    others = await api.with_token("bob", Role.ADMIN, tenant="other")

    assert (await theirs.put(f"/v1/runs/{run_id}/files/a.txt", content=b"a")).status_code == 200
    assert (await others.get(f"/v1/runs/{run_id}/files/a.txt")).status_code == 404


async def test_where_rules_ask_only_those_write_who_may_approve_such_a_call_alone(
    serving: Serving, workspace: Path, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('[[rules]]\ntools = ["write_file"]\nrisks = ["changes files *"]\napprovers = ["ann"]\n')
    api = await serving(script([text("done")]), approval_policy=policy)
    (workspace / "asked.txt").write_text("asked")
    run_id = await api.start(permissions={"read_file(asked.txt)": "ask", "write_file": "ask"})
    await api.result(run_id)
    files = f"/v1/runs/{run_id}/files"
    people = {name: await api.with_token(name, Role.APPROVER) for name in ("ann", "bob")}
    operator = await api.with_token("otto", Role.OPERATOR)

    assert (await people["ann"].put(f"{files}/a.txt", content=b"a")).status_code == 200
    refused = await people["bob"].put(f"{files}/a.txt", content=b"b")
    assert (refused.status_code, "the approval policy names other people" in refused.json()["detail"]) == (403, True)
    assert (await people["bob"].get(f"{files}/asked.txt")).status_code == 200
    assert "needs the role approver" in (await operator.get(f"{files}/asked.txt")).json()["detail"]
    assert (await operator.get(f"{files}/a.txt")).content == b"a"


async def test_a_service_gives_files_only_in_its_own_workspaces(
    serving: Serving, workspace: Path, tmp_path: Path
) -> None:
    api = await serving(script([text("done")]), workspaces=(tmp_path,))
    (other := tmp_path / "other").mkdir()
    (other / "secret.txt").write_text("secret")
    run_id = await api.start(workspace=str(other))
    await api.result(run_id)
    operator = await api.with_token("otto", Role.OPERATOR)
    path = f"/v1/runs/{run_id}/files/secret.txt"

    assert (await operator.get(path)).content == b"secret"
    narrow = api.loom.settings.model_copy(update={"workspaces": (workspace,)})
    _, url = await api.stack.enter_async_context(listening_service(narrow))
    refused = await operator.get(url + path)
    assert (refused.status_code, "outside the folders" in refused.json()["detail"]) == (422, True)
