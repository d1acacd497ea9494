"""A call runs only with a proof that is for exactly this call, unless the worker's own rules allow it. No server."""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from loom.activities.adapters.signing.approval_key_files import (
    create_approval_key,
    public_file,
    read_approval_key,
    read_approval_keys,
)
from loom.activities.approval_keys import ApprovalKey, ApprovalKeys, ProvenCall
from loom.activities.approval_proofs import OwnRules, ProofCheck
from loom.activities.manifest import Manifests
from loom.activities.ports import StoreUnavailable, Tool
from loom.activities.run_tool import ToolRunner
from loom.client import LoomClient
from loom.composition.build import parts_for
from loom.composition.settings import Settings
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.approval_proofs import LONGEST, TYPE, ApprovalClaims, execution_name
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject, ToolCall, ask_digest
from loom.domain.core.signatures import TOLERANCE
from loom.domain.core.tasks import Origin
from loom.domain.core.tool_calls import Effect, ToolSpec, Verdict
from loom.domain.permissions.judge import Mode
from loom.domain.permissions.subjects import Subject
from loom.domain.run.activity_payloads import ToolRequest

NOW: Final = datetime(2026, 5, 1, 12, tzinfo=UTC)
PRIVATE: Final = Ed25519PrivateKey.generate()
KEY: Final = ApprovalKey(PRIVATE)
KEYS: Final = ApprovalKeys([Ed25519PrivateKey.generate().public_key(), PRIVATE.public_key()])
ORIGIN: Final = Origin(run_id="run-1", execution="e1")
CALL: Final = ToolCall(id="c1", name="deploy", arguments={"to": "prod"})
REQUEST: Final = ToolRequest(
    origin=ORIGIN, turn=2, call_id="c1", tool="deploy", arguments=CALL.arguments, workspace="/w", asked=True
)
SEEN: Final = ProvenCall(
    run="run-1",
    execution="e1",
    call="c1",
    tool="deploy",
    digest=ask_digest("run-1", "e1", 2, CALL, reset_at=0),
    grants=("deploy(prod)",),
)


class Deploy:
    """A tool that needs an approval."""

    spec = ToolSpec(name="deploy", description="", parameters={}, declared=Verdict.ASK)

    def parse(self, arguments: JsonObject) -> JsonObject:
        return arguments

    def subjects(self, arguments: JsonObject, workspace: Path) -> Sequence[Subject]:
        return (Subject(text=str(arguments["to"])),)


DEPLOY: Final = cast("Tool", Deploy())


class Used:
    """`UsedStarts` for all workers of a test."""

    def __init__(self) -> None:
        self.by: dict[str, str] = {}
        self.is_away = False

    async def use(self, start: str, run_id: str, execution: str) -> str:
        if self.is_away:
            raise StoreUnavailable("no answer")
        return self.by.setdefault(start, execution)


def check(*agents: AgentSpec, used: Used | None = None, now: datetime = NOW) -> ProofCheck:
    rules = OwnRules({agent.name: agent for agent in agents}, AgentSpec(name="default", model="demo", system_prompt=""))
    return ProofCheck(KEYS, rules, used=used, clock=lambda: now)


async def refusal(request: ToolRequest, by: ProofCheck | None = None, call: ToolCall = CALL) -> str | None:
    return await (by or check()).refusal(request, call, DEPLOY)


def proven(**how: Any) -> ToolRequest:
    return replace(REQUEST, proof=KEY.proof(SEEN, by="ann", at=NOW, **how))


async def test_a_proven_call_runs_and_so_does_every_attempt_at_it_on_any_worker() -> None:
    used = Used()
    for attempt in (1, 2, 3):
        assert await refusal(replace(proven(), attempt=attempt), check(used=used)) is None
    request = proven()
    assert [await refusal(request, check(used=used)) for _ in range(3)] == [None] * 3


async def test_a_call_without_a_proof_does_not_run() -> None:
    assert "only with an approval that is proven" in str(await refusal(REQUEST))


OTHERS: Final[Mapping[str, Any]] = {
    "run": "run-2",
    "execution": "e2",
    "call": "c2",
    "tool": "delete",
    "digest": "0" * 32,
    "arguments": "0" * 64,
    "scope": "always",
    "grants": "deploy",
    "by": 7,
    "iat": int((NOW + TOLERANCE + timedelta(seconds=2)).timestamp()),
    "jti": "",
    "decision": "deny",
}


def content(**other: Any) -> JsonObject:
    claims = ApprovalClaims(
        run="run-1", execution="e1", call="c1", tool="deploy", digest=SEEN.digest, by="ann", iat=1, jti="j"
    )
    return {**claims.content, **other}


async def test_a_proof_holds_only_if_each_of_its_claims_does() -> None:
    assert set(content()) == set(OTHERS)
    assert await refusal(replace(REQUEST, proof=KEY.signed(content()))) is None
    for name, other in OTHERS.items():
        assert await refusal(replace(REQUEST, proof=KEY.signed(content(**{name: other})))), name
        without = {known: value for known, value in content().items() if known != name}
        assert await refusal(replace(REQUEST, proof=KEY.signed(without))), name
    assert await refusal(replace(REQUEST, proof=KEY.signed(content(more="more"))))


@pytest.mark.parametrize("nobody", ["", " "])
async def test_a_proof_names_who_has_approved(nobody: str, tmp_path: Path) -> None:
    assert "by" in str(await refusal(replace(REQUEST, proof=KEY.signed(content(by=nobody)))))

    create_approval_key(tmp_path / "approval.key")
    settings = Settings(approval_key=tmp_path / "approval.key")
    client = LoomClient(await Client.connect("127.0.0.1:1", lazy=True), settings=settings)
    with pytest.raises(BadRequest, match="the name of who approves") as raised:
        await client.approve("run-1", "c1", by=nobody)
    assert raised.value.context["field"] == "by"


@pytest.mark.parametrize(
    "other",
    [
        {"origin": replace(ORIGIN, run_id="run-2")},
        {"origin": replace(ORIGIN, execution="e2")},
        {"origin": replace(ORIGIN, reset_at=5)},
        {"turn": 3},
        {"call_id": "c2"},
        {"tool": "delete"},
        {"arguments": {"to": "test"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("edited", [False, True])
async def test_a_proof_holds_for_no_other_call(other: dict[str, Any], edited: bool) -> None:
    used = Used()
    request = proven(arguments=CALL.arguments if edited else None)
    assert await refusal(request, check(used=used)) is None

    moved = replace(request, **other)
    call = ToolCall(id=moved.call_id, name=moved.tool, arguments=moved.arguments or {})
    assert await refusal(moved, check(used=used), call)


async def test_a_proof_covers_the_arguments_that_the_person_has_given_instead() -> None:
    edited = {"to": "test"}
    request = replace(proven(arguments=edited), arguments=edited)

    assert await refusal(request, call=replace(CALL, arguments=edited)) is None
    assert await refusal(replace(request, arguments=CALL.arguments), call=CALL)


@given(st.data())
def test_no_byte_of_a_proof_can_be_changed(data: st.DataObject) -> None:
    proof = KEY.proof(SEEN, by="ann", at=NOW)
    position = data.draw(st.integers(0, len(proof) - 1))
    other = data.draw(st.characters(codec="latin-1").filter(lambda each: each != proof[position]))
    with pytest.raises(BadRequest):
        KEYS.verified(proof[:position] + other + proof[position + 1 :], NOW)


def test_the_unused_last_bits_of_a_signature_cannot_be_changed() -> None:
    proof = KEY.proof(SEEN, by="ann", at=NOW)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for other in set(alphabet) - {proof[-1]}:
        with pytest.raises(BadRequest):
            KEYS.verified(proof[:-1] + other, NOW)


def _token(header: Mapping[str, Any], signature: bytes = b"") -> str:
    parts = (json.dumps(header).encode(), json.dumps(content()).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def _hs256(secret: bytes) -> str:
    signing_input = _token({"alg": "HS256", "typ": TYPE, "kid": KEY.id}).rpartition(".")[0]
    signature = hmac.digest(secret, signing_input.encode(), hashlib.sha256)
    return f"{signing_input}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


PUBLIC: Final = PRIVATE.public_key()
EC: Final = generate_private_key(SECP256R1())
_PAYLOAD: Final = json.dumps(content()).encode()


def _other(key: Any, algorithm: str, **header: Any) -> str:
    return jwt.PyJWS().encode(_PAYLOAD, key, algorithm, {"typ": TYPE, "kid": KEY.id, **header})


@pytest.mark.parametrize(
    "proof",
    [
        _token({"alg": "none", "typ": TYPE, "kid": KEY.id}),
        _token({"alg": "EdDSA", "typ": TYPE, "kid": KEY.id}),
        _token({"alg": "EdDSA", "typ": TYPE, "kid": KEY.id}, bytes(64)),
        _hs256(PUBLIC.public_bytes_raw()),
        _hs256(PUBLIC.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)),
        _hs256(b""),
        _other(Ed25519PrivateKey.generate(), "EdDSA"),
        _other(EC, "ES256"),
        _other(PRIVATE, "EdDSA", kid="other"),
        _token({"alg": "EdDSA", "typ": TYPE, "kid": 7}, bytes(64)),
        _token({"alg": ["EdDSA"], "typ": TYPE, "kid": KEY.id}, bytes(64)),
        _other(PRIVATE, "EdDSA", typ="JWT"),
        _other(PRIVATE, "EdDSA", jwk={"kty": "OKP", "crv": "Ed25519", "x": "A" * 43}),
        ApprovalKey(Ed25519PrivateKey.generate()).signed(content()),
        KEY.signed(content()) + "=",
        KEY.signed(content()) + "." + "x",
        KEY.signed(content(by="x" * LONGEST)),
        "",
        "..",
        "not a token",
        "\ud800..",
    ],
)
def test_a_token_that_no_known_key_has_signed_as_a_proof_is_none(proof: str) -> None:
    with pytest.raises(BadRequest):
        KEYS.verified(proof, NOW)


async def test_a_used_proof_holds_for_no_other_call_even_where_the_database_has_to_tell() -> None:
    used = Used()
    edited = proven(arguments=CALL.arguments)  # the digest of what was seen can't be compared
    assert await refusal(edited, check(used=used)) is None
    assert await refusal(replace(edited, turn=3), check(used=used)) == (
        "the proof of this approval has been used for another call"
    )


async def test_without_a_database_a_worker_remembers_which_proofs_were_used() -> None:
    by, edited = check(), proven(arguments=CALL.arguments)
    assert [await refusal(replace(edited, turn=turn), by) is None for turn in (2, 2, 3)] == [True, True, False]


async def test_a_call_waits_while_the_database_does_not_say_whether_its_proof_was_used() -> None:
    used = Used()
    used.is_away = True
    with pytest.raises(ApplicationError, match="the database doesn't say"):
        await refusal(proven(), check(used=used))


@pytest.mark.parametrize(
    ("own", "is_allowed"),
    [
        ({}, False),
        ({"permissions": {"deploy": "allow"}}, True),
        ({"permissions": {"deploy(prod)": "allow"}}, True),
        ({"permissions": {"deploy(test)": "allow"}}, False),
        ({"permissions": {"deploy": "deny"}}, False),
        ({"mode": Mode.BYPASS}, True),
    ],
    ids=str,
)
async def test_without_an_ask_the_workers_own_rules_decide_whether_a_call_needs_a_proof(
    own: dict[str, Any], is_allowed: bool
) -> None:
    agent = AgentSpec(name="default", model="demo", system_prompt="", **own)
    unasked = replace(REQUEST, asked=False)

    assert (await refusal(unasked, check(agent)) is None) is is_allowed
    assert await refusal(REQUEST, check(agent)), "the run's rules ask"


async def test_an_approval_for_the_run_covers_what_its_rules_name_in_that_run() -> None:
    whole_run = KEY.proof(SEEN, by="ann", scope="run", at=NOW)
    later = replace(REQUEST, asked=False, turn=5, call_id="c9", grant_proofs=(whole_run,))
    again = replace(CALL, id="c9")
    elsewhere = replace(again, arguments={"to": "test"})

    assert await refusal(later, call=again) is None
    assert await refusal(replace(later, arguments=elsewhere.arguments), call=elsewhere)
    assert await refusal(replace(later, origin=replace(ORIGIN, run_id="run-2")), call=again)
    assert await refusal(replace(later, origin=replace(ORIGIN, reset_at=5)), call=again)
    once = KEY.signed(content(grants=["deploy(prod)"]))
    assert await refusal(replace(later, grant_proofs=(once,)), call=again)


async def test_an_approval_with_other_arguments_covers_nothing_that_the_rules_of_the_call_as_seen_name() -> None:
    whole_run = KEY.proof(SEEN, by="ann", scope="run", arguments={"to": "test"}, at=NOW)
    later = replace(REQUEST, asked=False, turn=5, call_id="c9", grant_proofs=(whole_run,))
    assert await refusal(later, call=replace(CALL, id="c9"))


class ListedMeanwhile:
    """A check during which an MCP server lists the tool."""

    def __init__(self, box: dict[str, Tool]) -> None:
        self._box = box

    async def refusal(self, request: ToolRequest, call: ToolCall, tool: Tool | None) -> str | None:
        assert tool is None
        self._box[call.name] = DEPLOY
        return None


async def test_a_tool_that_appears_after_the_check_does_not_run() -> None:
    parts, box = parts_for(Settings(redis_url=None, database_url=None)), dict[str, Tool]()
    runner = ToolRunner(
        tools=box,
        transcripts=parts.transcripts,
        stream=parts.stream,
        sanitizer=parts.sanitizer,
        effects=parts.effects,
        own=parts.own,
        masked=parts.masked,
        registered=None,
        manifests=Manifests(agents={}, own={}, tools=box, transcripts=parts.transcripts, refuse=False),
        parts=parts.part_keeper,
        proofs=cast("ProofCheck", ListedMeanwhile(box)),
    )
    result = await ActivityEnvironment().run(runner.run_tool, replace(REQUEST, effect=Effect.READ))
    assert result.error_type == "not_found"


def test_an_execution_is_another_one_after_a_reset() -> None:
    assert execution_name("e1", 0) != execution_name("e1", 5) != execution_name("e1", 6)


def test_a_new_key_and_its_public_part_work_together_and_beside_older_ones(tmp_path: Path) -> None:
    keys = [create_approval_key(tmp_path / name) for name in ("old", "new")]
    assert read_approval_key(tmp_path / "new").id == keys[1].id
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600

    both = tmp_path / "both"
    both.write_bytes(b"".join(public_file(tmp_path / name).read_bytes() for name in ("old", "new")))
    assert read_approval_keys(both).ids == (keys[0].id, keys[1].id)
    for key in keys:
        assert read_approval_keys(both).verified(key.proof(SEEN, by="ann", at=NOW), NOW).by == "ann"
    with pytest.raises(BadRequest, match="exists already"):
        create_approval_key(tmp_path / "new")


def _pem(key: Any) -> bytes:
    return bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (_pem(PRIVATE), "it contains a private key"),
        (EC.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), "isn't a public Ed25519 key"),
        (b"", "it must contain only public keys"),
        (b"no key", "it must contain only public keys"),
    ],
)
def test_a_workers_file_contains_public_keys_and_nothing_else(tmp_path: Path, text: bytes, why: str) -> None:
    path = tmp_path / "approval.pub"
    path.write_bytes(text)
    with pytest.raises(BadRequest, match=why):
        read_approval_keys(path)


def test_other_users_must_not_be_able_to_read_a_private_key(tmp_path: Path) -> None:
    create_approval_key(path := tmp_path / "approval.key")
    path.chmod(0o644)
    with pytest.raises(BadRequest, match="LOOM_APPROVAL_KEY.*other users can read it"):
        read_approval_key(path)
    with pytest.raises(BadRequest, match="loom keys approval"):
        read_approval_key(tmp_path / "none.key")
