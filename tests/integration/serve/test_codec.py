"""Temporal's Web UI reads encrypted payloads through the service."""

import base64
from pathlib import Path

from google.protobuf.json_format import MessageToDict
from temporalio.api.common.v1 import Payloads

from loom.activities.adapters.encryption.key_ring import new_key, write_keys
from loom.serve.access.roles import Role
from loom.testing.model_server import script, text
from tests.integration.serve.conftest import Serving

UI = "http://127.0.0.1:8233"


async def test_the_web_ui_reads_encrypted_payloads_if_the_caller_sees_all_tenants(
    serving: Serving, tmp_path: Path
) -> None:
    write_keys(tmp_path / "keys", [new_key()])
    api = await serving(script([text("done")]), encryption_keys=tmp_path / "keys", serve_origins=(UI,))
    viewer = await api.with_token("ann", Role.VIEWER)
    run_id = await api.start("count the secret sheep")
    await api.result(run_id)
    history = await api.loom.client.temporal.get_workflow_handle(run_id).fetch_history()
    begun = history.events[0].workflow_execution_started_event_attributes.input
    sealed = MessageToDict(Payloads(payloads=begun.payloads))
    assert b"sheep" not in begun.SerializeToString()

    asked = await api.anonymous.options(
        "/codec/decode",
        headers={
            "Origin": UI,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "x-namespace",
        },
    )
    shown = await viewer.post("/codec/decode", json=sealed, headers={"Origin": UI})
    refused = await (await api.with_token("bob", Role.ADMIN, tenant="acme")).post("/codec/decode", json=sealed)
    encoded = [(await who.post("/codec/encode", json=shown.json())).status_code for who in (viewer, api.http)]
    unknown = await api.anonymous.post("/codec/decode", json=sealed)

    assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, UI)
    assert b"sheep" in base64.b64decode(shown.json()["payloads"][0]["data"])
    assert (shown.headers.get_list("access-control-allow-origin"), refused.status_code, unknown.status_code) == (
        [UI],
        403,
        401,
    )
    assert encoded == [403, 200], "only an admin writes what runs read"
