"""Archives of requests: where their content is kept, and who may read it."""

from base64 import b64encode
from hashlib import sha256
from uuid import uuid4

import pytest

from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.parts import PostgresParts
from loom.activities.archives import Archives
from loom.archive_upload import encoded_workspace, uploaded_workspace
from loom.domain.core.errors import BadRequest
from loom.domain.core.repositories import Archive
from loom.domain.core.tasks import Origin
from loom.inline_content import INLINE, refuse_large_content
from tests.archives import tar_of

PACKED = tar_of({"a.txt": "one"})
DIGEST = sha256(PACKED).hexdigest()


@pytest.fixture
def store(database: Database) -> PostgresParts:
    return PostgresParts(database)


@pytest.fixture
def origin() -> Origin:
    return Origin(run_id=f"run-{uuid4().hex}", tenant=f"acme-{uuid4().hex}")


async def test_a_client_sends_the_digest_of_what_it_has_stored_for_the_run(
    store: PostgresParts, origin: Origin
) -> None:
    given = encoded_workspace({"archive": {"data": PACKED, "name": "a.tgz"}})

    sent = await uploaded_workspace(given, store, origin.run_id)

    assert sent == {"archive": {"digest": DIGEST, "name": "a.tgz"}}
    assert await Archives(store).stored(Archive(digest=DIGEST), origin) == DIGEST


async def test_a_client_without_a_database_sends_a_small_archive_itself() -> None:
    given = encoded_workspace({"archive": {"data": PACKED}})

    assert await uploaded_workspace(given, None, "run-1") == given
    with pytest.raises(BadRequest, match="isn't one that Loom unpacks"):
        await uploaded_workspace({"archive": {"data": b64encode(b"hello").decode()}}, None, "run-1")
    with pytest.raises(BadRequest, match="not base64"):
        await uploaded_workspace({"archive": {"data": "?"}}, None, "run-1")


def test_what_a_request_contains_is_limited_together() -> None:
    half = b64encode(bytes(INLINE // 2)).decode()

    refuse_large_content({"parts": [{"data": half}, {"url": "https://x"}], "workspace": {"archive": {"data": half}}})
    refuse_large_content({"parts": [{"digest": DIGEST}], "workspace": {"archive": {"digest": DIGEST}}})
    with pytest.raises(BadRequest, match="contains 1,500,000 bytes of parts and archives, .* at most 1,000,000"):
        refuse_large_content({"parts": [{"data": half}] * 2, "workspace": {"archive": {"data": half}}})
    with pytest.raises(BadRequest, match="contains 1,000,001 bytes"):
        refuse_large_content({"workspace": {"archive": {"data": b64encode(bytes(INLINE + 1)).decode()}}})


@pytest.mark.parametrize("workspace", [None, "/srv/app", {"git": "https://git.example/app"}])
async def test_another_workspace_is_sent_as_it_is(workspace: object) -> None:
    assert await uploaded_workspace(encoded_workspace(workspace), None, "run-1") == workspace


async def test_a_sub_agent_on_another_machine_reads_the_archive_of_its_root(
    store: PostgresParts, origin: Origin
) -> None:
    archives = Archives(store)
    await archives.stored(Archive(data=b64encode(PACKED).decode()), origin)
    below = Origin(run_id=f"{origin.run_id}/1", root_run_id=origin.run_id, tenant=origin.tenant)

    assert await archives.content(DIGEST, below) == PACKED


async def test_a_digest_gives_no_other_tenant_the_right_to_read(store: PostgresParts, origin: Origin) -> None:
    archives = Archives(store)
    packed = tar_of({"secret.txt": origin.tenant})
    digest = await archives.stored(Archive(data=b64encode(packed).decode()), origin)
    other = Origin(run_id=f"run-{uuid4().hex}", tenant="other")

    with pytest.raises(BadRequest, match=f"no archive is stored under the digest {digest}"):
        await archives.stored(Archive(digest=digest), other)
    with pytest.raises(BadRequest, match=f"the archive {digest} is no longer in the worker's database"):
        await archives.content(digest, other)
