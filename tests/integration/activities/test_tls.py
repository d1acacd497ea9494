"""TLS to Temporal, Postgres and Redis: certificates of clients, and API keys."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from redis.asyncio import Redis

from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.redis.connection import RedisConnection
from loom.composition.load_settings import read_settings
from loom.composition.temporal_connection import connected
from loom.domain.core.errors import BadRequest, UnreachableError
from loom.testing.harness import Addresses
from tests.certificates import Authority
from tests.tls_proxy import headers_in, tls_in_front_of

CLIENT = "loom-worker"


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    monkeypatch.chdir(tmp_path)
    return Authority(tmp_path)


def given(monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))


async def test_a_client_with_a_certificate_reaches_a_temporal_server_that_asks_for_one(
    addresses: Addresses, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = authority.certificate(CLIENT)
    host, _, port = addresses.temporal.rpartition(":")
    async with tls_in_front_of(host, int(port), authority) as secured:
        given(
            monkeypatch,
            TEMPORAL_ADDRESS=f"localhost:{secured}",
            TEMPORAL_TLS_SERVER_CA_CERT_PATH=authority.path,
            TEMPORAL_TLS_CLIENT_CERT_PATH=certificate,
            TEMPORAL_TLS_CLIENT_KEY_PATH=key,
        )
        async with connected(read_settings()) as client:
            assert await client.count_workflows() is not None

        monkeypatch.delenv("TEMPORAL_TLS_CLIENT_CERT_PATH")
        monkeypatch.delenv("TEMPORAL_TLS_CLIENT_KEY_PATH")
        with pytest.raises(UnreachableError, match="no Temporal server answers at localhost"):
            async with connected(read_settings()):
                pass


async def test_an_api_key_is_sent_with_each_request_and_only_over_tls(
    addresses: Addresses, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = authority.certificate(CLIENT)
    host, _, port = addresses.temporal.rpartition(":")
    sent: list[bytearray] = []
    async with tls_in_front_of(host, int(port), authority, sent=sent) as secured:
        given(
            monkeypatch,
            TEMPORAL_ADDRESS=f"localhost:{secured}",
            TEMPORAL_API_KEY="key-of-the-cloud",
            TEMPORAL_TLS_SERVER_CA_CERT_PATH=authority.path,
            TEMPORAL_TLS_CLIENT_CERT_PATH=certificate,
            TEMPORAL_TLS_CLIENT_KEY_PATH=key,
        )
        async with connected(read_settings()) as client:
            await client.count_workflows()
    headers = [each for connection in sent for each in headers_in(bytes(connection))]
    paths = [value for name, value in headers if name == ":path"]
    assert any(path.endswith("/CountWorkflowExecutions") for path in paths)
    assert headers.count(("authorization", "Bearer key-of-the-cloud")) == len(paths)

    monkeypatch.setenv("TEMPORAL_ADDRESS", addresses.temporal)  # speaks no TLS, so it never sees the key
    with pytest.raises(UnreachableError):
        async with connected(read_settings()):
            pass


async def test_postgres_and_redis_take_client_certificates_from_their_urls(
    addresses: Addresses, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = authority.certificate(CLIENT)
    files = f"sslcert={certificate}&sslkey={key}&sslrootcert={authority.path}"
    redis_files = f"ssl_certfile={certificate}&ssl_keyfile={key}&ssl_ca_certs={authority.path}"
    postgres, redis = urlsplit(addresses.database), urlsplit(addresses.redis)
    assert postgres.hostname
    assert postgres.port
    assert redis.hostname
    assert redis.port
    async with (
        tls_in_front_of(postgres.hostname, postgres.port, authority, is_postgres=True) as secured_postgres,
        tls_in_front_of(redis.hostname, redis.port, authority) as secured_redis,
    ):
        monkeypatch.setenv(
            "LOOM_DATABASE_URL",
            f"postgresql://{postgres.username}:{postgres.password}@localhost:{secured_postgres}{postgres.path}"
            f"?sslmode=verify-full&{files}",
        )
        monkeypatch.setenv("LOOM_REDIS_URL", f"rediss://:{redis.password}@localhost:{secured_redis}/0?{redis_files}")
        settings = read_settings()
        assert settings.database_url
        assert settings.redis_url
        database = Database(settings.database_url, ensure=_nothing)
        async with database.connection() as connection:
            assert (await (await connection.execute("select 1")).fetchone()) == (1,)
        await database.aclose()
        link = RedisConnection(settings.redis_url, answer_within=5)
        assert await link.call(_ping)
        await link.aclose()


async def _nothing(_: psycopg.AsyncConnection[Any]) -> None:
    pass


async def _ping(redis: Redis) -> bool:
    return bool(await redis.ping())


def refused(monkeypatch: pytest.MonkeyPatch, **values: Any) -> str:
    given(monkeypatch, **values)
    with pytest.raises(BadRequest) as wrong:
        read_settings()
    return wrong.value.message


def test_a_certificate_needs_its_own_key(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, _ = authority.certificate(CLIENT)
    _, other = authority.certificate("other")
    together = "must be set together with TEMPORAL_TLS_CLIENT_CERT_PATH"
    assert together in refused(monkeypatch, TEMPORAL_TLS_CLIENT_CERT_PATH=certificate)
    assert f"the key in {other} doesn't belong to" in refused(monkeypatch, TEMPORAL_TLS_CLIENT_KEY_PATH=other)
    monkeypatch.delenv("TEMPORAL_TLS_CLIENT_CERT_PATH")
    assert together in refused(monkeypatch)


def test_files_that_are_missing_expired_or_something_else_are_refused_by_name(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expired, key = authority.certificate("expired", days=-1)
    message = refused(monkeypatch, TEMPORAL_TLS_CLIENT_CERT_PATH=expired, TEMPORAL_TLS_CLIENT_KEY_PATH=key)
    assert message.startswith(f"TEMPORAL_TLS_CLIENT_CERT_PATH: the certificate in {expired} expired on 2")
    message = refused(monkeypatch, TEMPORAL_TLS_CLIENT_CERT_PATH=key)
    assert f"{key} contains no certificate in PEM format" in message
    message = refused(monkeypatch, TEMPORAL_TLS_CLIENT_CERT_PATH=tmp_path / "absent.pem")
    assert f"{tmp_path / 'absent.pem'} can't be read: No such file or directory" in message


@pytest.mark.parametrize(
    ("variable", "scheme", "names"),
    [
        ("LOOM_DATABASE_URL", "postgresql", ("sslcert", "sslkey")),
        ("LOOM_REDIS_URL", "rediss", ("ssl_certfile", "ssl_keyfile")),
    ],
)
def test_the_files_that_a_url_names_are_checked_too(
    variable: str, scheme: str, names: tuple[str, str], authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = authority.certificate(CLIENT)
    message = refused(monkeypatch, **{variable: f"{scheme}://host/0?{names[0]}={certificate}"})
    assert f"must name both {names[0]} and {names[1]}, or neither" in message
    expired, key = authority.certificate("expired", days=-1)
    message = refused(monkeypatch, **{variable: f"{scheme}://host/0?{names[0]}={expired}&{names[1]}={key}"})
    assert message.startswith(f"{variable}: the certificate in {expired} expired on")


def test_a_worker_takes_its_version_from_temporal_s_worker_controller(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, TEMPORAL_DEPLOYMENT_NAME="agents/loom-worker", TEMPORAL_WORKER_BUILD_ID="0.4.0-1a2b")
    assert (read_settings().deployment, read_settings().build) == ("agents/loom-worker", "0.4.0-1a2b")
    given(monkeypatch, LOOM_DEPLOYMENT="off")
    assert read_settings().deployment is None
