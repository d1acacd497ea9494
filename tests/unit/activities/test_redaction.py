"""Secrets go, everything else stays: on secrets in real formats, on decoys and on ordinary source code."""

import json
import re
import shlex
from base64 import b64encode, encodebytes, urlsafe_b64encode
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import thread_time
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loom.activities.adapters.redaction.known_secrets import secrets_of
from loom.activities.adapters.redaction.mask import SecretMask
from loom.activities.ports import Redactor
from tests.corpora.secrets.decoys import decoys
from tests.corpora.secrets.making import ALNUM, SIGNS, Maker
from tests.corpora.secrets.ordinary import ordinary_code
from tests.corpora.secrets.samples import LEAK, leaks, samples

MASK = SecretMask()
PORT: Redactor = MASK
CORPUS = tuple(samples(seed=20_260_101, repeats=3))
MAKER = Maker(7)
OWN = MAKER.password() + "/" + MAKER.password()
"""A secret of the worker's own, without any format."""
WITH_OWN = SecretMask([OWN])


def test_at_least_99_of_100_secrets_are_not_seen_any_more() -> None:
    leaked = Counter(sample.kind for sample in CORPUS if leaks(sample, MASK.redact(sample.text)))
    assert leaked.total() <= len(CORPUS) // 100, leaked


def test_no_format_is_missed_more_than_now_and_then() -> None:
    seen = Counter(sample.kind for sample in CORPUS)
    leaked = Counter(sample.kind for sample in CORPUS if leaks(sample, MASK.redact(sample.text)))
    assert [kind for kind in seen if leaked[kind] > 2] == []


def test_no_decoy_is_touched() -> None:
    assert [decoy for decoy in decoys() if MASK.redact(decoy) != decoy] == []


def test_a_megabyte_of_ordinary_source_code_is_not_touched() -> None:
    code = ordinary_code(1_000_000)
    assert len(code) == 1_000_000
    assert MASK.redact(code) == code


@pytest.mark.parametrize("name", ["ACME_TOKEN", "ACME_KEY", "ACME_API_KEY", "acme_secret", "apiKey"])
@pytest.mark.parametrize("place", ["{}={}", "{}: '{}'", '{{"{}": "{}"}}', "export {} = {}", "<{0}>{1}</{0}>"])
def test_every_uuid_under_a_secret_s_name_goes(name: str, place: str) -> None:
    uuids = [MAKER.uuid() for _ in range(50)]
    assert [uuid for uuid in uuids if uuid in MASK.redact(place.format(name, uuid))] == []


@pytest.mark.parametrize("dummy", ["x" * 40, "X" * 40, "*" * 40, "0" * 40, "YOUR_TOKEN_GOES_HERE_" + "a" * 20])
@pytest.mark.parametrize("prefix", ["gh" + "p_", "gl" + "pat-", "np" + "m_", "s" + "k-ant-api03-", "EZ" + "AK"])
def test_a_dummy_in_a_secret_s_format_stays(prefix: str, dummy: str) -> None:
    assert MASK.redact(f"TOKEN={prefix}{dummy}") == f"TOKEN={prefix}{dummy}"


@pytest.mark.parametrize("is_first", [True, False], ids=["kind before data", "data before kind"])
@pytest.mark.parametrize("value", ["  password: {}", "  password: '{}'", "  .dockercfg: |\n    {}"])
def test_the_data_of_a_kubernetes_secret_goes(value: str, is_first: bool) -> None:
    secret = MAKER.base64(24)
    data = f"data:\n  user: YWRtaW4=\n{value.format(secret)}\n"
    kind = "kind: Secret\n"
    manifest = f"apiVersion: v1\n{kind + data if is_first else data + kind}type: Opaque\n"
    other = f"---\nkind: ConfigMap\ndata:\n  digest: {MAKER.base64(24)}\n"
    assert MASK.redact(manifest + other) == manifest.replace(secret, "[REDACTED]") + other


def test_redacting_twice_is_redacting_once() -> None:
    once = [MASK.redact(sample.text) for sample in CORPUS]
    assert [MASK.redact(text) for text in once] == once


def test_what_stands_around_a_secret_stays_byte_for_byte() -> None:
    secret = "gh" + "p_" + MAKER.of(ALNUM, 36)
    text = f"\ufeffa\r\n\t  é\0\x1b[1m{secret}\x1b[0m  \udc80 {secret},z\n\n"
    assert MASK.redact(text) == text.replace(secret, "[REDACTED]")


def test_of_an_address_only_the_password_goes() -> None:
    url = f"postgresql://app:{MAKER.safe_password()}@db.internal:5432/app?sslmode=require"
    assert MASK.redact(url) == "postgresql://app:[REDACTED]@db.internal:5432/app?sslmode=require"


@pytest.mark.parametrize("weak", ["12345678", "deadbeef", "abcdef99"])
def test_a_weak_password_in_an_address_goes_too(weak: str) -> None:
    assert MASK.redact(f"https://anna:{weak}@gems.example.com/") == "https://anna:[REDACTED]@gems.example.com/"


@pytest.mark.parametrize("assigned", ["{}={}", "{}: {}", '{}: "{}"', "export {}='{}'"])
def test_bundler_s_credentials_of_a_gem_server_go(assigned: str) -> None:
    password = MAKER.password()
    line = assigned.format("BUNDLE_GEMS__ACME__COM", f"anna:{password}")
    assert MASK.redact(line) == line.replace(password, "[REDACTED]")


def test_json_stays_json() -> None:
    given = {
        "password": MAKER.password(),
        "url": f"redis://:{MAKER.safe_password()}@cache",
        "note": 'say "token"',
        "n": 3,
    }
    expected = {"password": "[REDACTED]", "url": "redis://:[REDACTED]@cache", "note": 'say "token"', "n": 3}
    assert json.loads(MASK.redact(json.dumps(given))) == expected


def test_names_in_a_json_value_count() -> None:
    given = {"env": [{"API_TOKEN": MAKER.of(ALNUM, 32), "PORT": 1}], "text": "password: see below", "token": None}
    expected = {"env": [{"API_TOKEN": "[REDACTED]", "PORT": 1}], "text": "password: see below", "token": None}
    assert SecretMask().redact_json(given) == expected


@pytest.mark.parametrize("before", ["", "x", "xy", "xyz"])
@pytest.mark.parametrize("encode", [b64encode, urlsafe_b64encode])
def test_base64_of_a_known_secret_goes_wherever_it_begins(encode: type, before: str) -> None:
    shown = WITH_OWN.redact(encode(f"{before}{OWN}tail".encode()).decode())
    assert "[REDACTED]" in shown
    assert len(shown) <= len("[REDACTED]") + 16


@pytest.mark.parametrize(
    "spelt",
    [
        OWN,
        OWN.encode().hex(),
        OWN.encode().hex().upper(),
        quote(OWN),
        quote(OWN, safe=""),
        quote_plus(OWN),
        json.dumps(OWN)[1:-1],
        json.dumps(json.dumps(OWN))[3:-3],
        repr(OWN)[1:-1],
        shlex.quote(OWN).strip("'"),
    ],
)
def test_known_secrets_go_in_their_usual_spellings(spelt: str) -> None:
    assert WITH_OWN.redact(f"x {spelt} y") == "x [REDACTED] y"


DISGUISES: dict[str, Callable[[str], str]] = {
    "spaced": " ".join,
    "dashed": "-".join,
    "one character a line": "\n".join,
    "folded": lambda text: f"{text[:9]}\n    {text[9:]}",
    "concatenated": lambda text: f'"{text[:11]}" \\\n    + "{text[11:]}"',
    "reversed": lambda text: text[::-1],
    "upper case": str.upper,
    "spaced upper case": lambda text: " ".join(text.upper()),
    "hex": lambda text: text.encode().hex(" "),
    "hex dump": lambda text: text.encode().hex(":").upper(),
    "base64 in lines": lambda text: encodebytes(f"{'text before it ' * 5}{text} and after".encode()).decode(),
}


@pytest.mark.parametrize("disguise", DISGUISES)
def test_a_known_secret_goes_in_disguise(disguise: str) -> None:
    for _ in range(50):
        secret = MAKER.of(ALNUM, 24)
        shown = SecretMask([secret]).redact(f"before {DISGUISES[disguise](secret)} after")
        assert shown.startswith("before ")
        assert shown.endswith(" after")
        assert "[REDACTED]" in shown
        assert DISGUISES[disguise](secret)[6:30] not in shown


def _base64_at(offset: int) -> Callable[[bytes], bytes]:
    return lambda data: b64encode(b"~" * offset + data + b"tail")


ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "hex": lambda data: data.hex().encode(),
    "URL": lambda data: quote(data, safe="").encode(),
    **{f"base64 at {offset}": _base64_at(offset) for offset in range(3)},
}


@pytest.mark.parametrize("inner", ENCODINGS)
@pytest.mark.parametrize("outer", ENCODINGS)
def test_a_known_secret_goes_when_it_is_encoded_twice(outer: str, inner: str) -> None:
    for _ in range(50):
        secret = MAKER.of(ALNUM, 32)
        encoded = ENCODINGS[outer](ENCODINGS[inner](secret.encode())).decode()
        assert "[REDACTED]" in SecretMask([secret]).redact(f"before {encoded} after"), (secret, encoded)


def test_a_known_secret_with_quotes_goes_however_it_is_quoted() -> None:
    odd = "a'b\"c\\d" + MAKER.of(ALNUM, 8) + "&é$"
    mask = SecretMask([odd])
    spelt = [odd, json.dumps(odd), json.dumps(odd, ensure_ascii=False), shlex.quote(odd), repr(odd), quote(odd)]
    assert [piece for piece in map(mask.redact, spelt) if odd[8:15] in piece] == []


def test_the_environment_says_what_is_secret() -> None:
    token, password = MAKER.of(ALNUM, 30), MAKER.safe_password()
    environ = {
        "ACME_TOKEN": token,
        "DATABASE_URL": f"postgresql://app:{quote(password)}@db/app",
        "SERVICE_URL": "https://acme.test/",
        "PATH": "/usr/bin:/bin",
        "SSH_AUTH_SOCK": "/tmp/agent.1",
        "GIT_AUTHOR_EMAIL": "bob2@acme.test",
        "PWD": "/home/bob/project-2024",
    }
    assert secrets_of(environ) == (token, password)


@pytest.mark.parametrize(
    "plain", ["postgresql", "true", "Bearer", "12345678", "/run/secrets/key", "my-service account", "short1"]
)
def test_a_secret_that_is_an_ordinary_word_does_not_blank_ordinary_text(plain: str) -> None:
    text = f"the {plain} is here"
    assert SecretMask([plain]).redact(text) == text


def test_a_key_that_begins_with_a_slash_is_no_path() -> None:
    key = "/" + MAKER.of(ALNUM, 39)
    assert SecretMask(secrets_of({"AWS_SECRET_ACCESS_KEY": key})).redact(f"key {key}.") == "key [REDACTED]."


@pytest.mark.parametrize("value", ["[REDACTED]", "EDACTED]", "[REDACTE"])
def test_a_secret_that_is_the_mask_itself_ends_too(value: str) -> None:
    assert SecretMask([value]).redact(f"x [REDACTED] {value}") == f"x [REDACTED] {value}"


def test_a_known_secret_of_several_lines_goes_line_by_line() -> None:
    first, second = MAKER.of(ALNUM, 40), MAKER.of(ALNUM, 40)
    assert SecretMask([f"{first}\n{second}"]).redact(f"- {first}\n- {second}\n") == "- [REDACTED]\n- [REDACTED]\n"


@given(st.text())
@example("İ" * 9 + "password=" + "aB3$" * 3)
@example("\udc80\ud800 token: \x00")
def test_any_text_is_taken_and_redacting_is_idempotent(text: str) -> None:
    once = WITH_OWN.redact(text)
    assert WITH_OWN.redact(once) == once


def test_letters_that_change_their_length_do_not_shift_the_mask() -> None:
    assert MASK.redact("İİİ password='aB3$xK9!q'") == "İİİ password='[REDACTED]'"


def test_many_threads_may_use_one_mask() -> None:
    texts = [sample.text for sample in CORPUS[:400]]
    expected = [MASK.redact(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(MASK.redact, texts)) == expected


@pytest.mark.parametrize(
    "unit",
    [
        "password=",
        "api_key=token=",
        "token: ",
        "://a:",
        "eyJ",
        "curl -u ",
        "curl \\\n -u a:",
        "bearer ",
        "QUJD" * 16 + "\n",
        "kind: secret\ndata:\n",
        "token: |\n  ",
        "123456789012345|",
    ],
)
def test_no_text_makes_it_slow(unit: str) -> None:
    """Four times the text takes about four times as long; were anything quadratic, it would be sixteen."""
    assert _work(unit, 40_000) < 9 * _work(unit, 10_000)


def _work(unit: str, length: int) -> float:
    """Processor time of this thread, which a busy machine hardly changes; the least of several."""
    text = unit * (length // len(unit))

    def once() -> float:
        begun = thread_time()
        MASK.redact(text)
        return thread_time() - begun

    return min(once() for _ in range(3))


@pytest.mark.parametrize("value", ["aB3$x'K9!qZ", 'aB3$x"K9!qZ', "aB3$x`K9!qZ", "aB3$x\\K9!qZ", "aB3$x\nK9!qZ"])
def test_no_character_in_a_password_saves_it_from_its_name(value: str) -> None:
    assert MASK.redact_json({"password": value}) == {"password": "[REDACTED]"}


def test_a_known_secret_is_masked_as_a_name_too() -> None:
    known = "kX9-known-secret-of-ours"
    assert SecretMask([known]).redact_json({known: 1}) == {"[REDACTED]": 1}


def test_the_example_in_the_documentation_is_true() -> None:
    text = Path(__file__).parents[3].joinpath("docs", "redaction.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert example.count("\nassert ") >= 3
    exec(example, {})


def test_leaks_are_noticed_by_this_very_test() -> None:
    sample = next(sample for sample in CORPUS if len(sample.secret) > 30)
    assert leaks(sample, sample.text)
    assert leaks(sample, sample.secret[5 : 5 + LEAK])
    assert not leaks(sample, re.sub(re.escape(sample.secret), "[REDACTED]", sample.text))
    assert set(SIGNS) & set(OWN)
