"""Texts that look like secrets and are none: nothing in them may be touched."""

from collections.abc import Iterator
from hashlib import sha1, sha256
from typing import Final

from tests.corpora.secrets.making import HEX, WORD, Maker, lines

FIXED: Final = r"""
api_key = "sk-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
OPENAI_API_KEY=sk-...
ANTHROPIC_API_KEY=<your-token>
token: "<YOUR_API_TOKEN_HERE_1>"
password: ********
password: changeme123
password = "your-password-123"
PASSWORD="${DB_PASSWORD}"
password: ${{ secrets.DB_PASSWORD_2 }}
token: {{ vault.github_token_v2 }}
export TOKEN=$GITHUB_TOKEN2
set TOKEN=%GITHUB_TOKEN2%
api_key = os.environ["API_KEY_V2"]
api_key = os.getenv("OPENAI_API_KEY2")
apiKey: process.env.STRIPE_API_KEY2,
password = get_password2()
password = settings.database.password1
token = self._tokens[index1]
token = await fetch_token_v2(client)
def check(password: str = "", token: Token2 | None = None) -> str:
secret_name: prod/db/password1
secret_id = "projects/1234/secrets/db-pass/versions/1"
password_file: /run/secrets/db_password1
token_url = "https://auth.acme.test/oauth2/v1/token"
tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased-2")
max_tokens: 8192
next_token_ids = [101, 2023, 2003]
password_hash_algorithm = "pbkdf2_sha256"
if password != confirm_password2: raise ValueError("passwords differ")
The token is 40 characters long; a password needs 8 characters and 1 digit.
Bearer authentication is used, see RFC 6750: Authorization: Bearer <token>
Authorization: Bearer $ACCESS_TOKEN
Authorization: Basic realm
headers = {"Authorization": f"Bearer {token}"}
http://localhost:8080/a@b
https://registry.npmjs.org:443/@scope/package
https://user:password@host.test/path
postgresql://scott:tiger@localhost/test
postgres://${USER}:${PASSWORD}@${HOST}/db
redis://:<password>@localhost
git@github.com:acme/project.git
ssh://git@github.com:22/acme/project.git
mailto:bob@acme.test
AWS_ACCESS_KEY_ID=AKIAIOSFODNN7EXAMPLE
aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY
arn:aws:secretsmanager:eu-central-1:123456789012:secret:prod/db2-AbCdEf
"AWS::SecretsManager::Secret": "c85175a4ebcce361"
<assemblyIdentity publicKeyToken="1fc8b3b9a1e18e3b" />
function e(t,n){return t.token=n.key2,t.secret=n?r(n):o,t}var token=a.b1.c2,passwd=e.x2(t);
.token.keyword{color:#f92672}.pwd:after{content:"\f10a"}
const PASSWORD_REGEX = /^(?=.*[A-Z])(?=.*\d).{8,}$/;
input[type=password]{border:1px solid #ccc}
<input type="password" name="password" id="password2" placeholder="Password (8+)">
"publishable": "pk_live_is_public"
GITHUB_TOKEN=ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
glpat-XXXXXXXXXXXXXXXXXXXX and npm_000000000000000000000000000000000000
SLACK_BOT_TOKEN=xoxb-xxxxxxxxxxxx-xxxxxxxxxxxx-xxxxxxxxxxxxxxxxxxxxxxxx
"apiKey": "sk-ant-api03-your-api-key-goes-in-here-and-nowhere-else"
key = AKIAXXXXXXXXXXXXXXXX
EZAK**********************************************************
API_KEY=YOUR_API_KEY
EASYPOST_KEY=<token>
api_key: 1234567890abcdef1234567890abcdef
FOREIGN_KEY = "2f0c9b1e-5f0b-4d2a-9a51-3c8f5a0d7e11"
foreign_key: 2f0c9b1e-5f0b-4d2a-9a51-3c8f5a0d7e11
commit 4b1d0f1e2d3c4b5a69788796a5b4c3d2e1f00112
task-runner-2024-01-01T00-00-00Z-build-artifacts-linux-x86-64
disk-usage-report-for-the-month-of-january-2024.txt
SG.something.else
BEGIN PRIVATE KEY is how such a file begins
START = "-----BEGIN PRIVATE KEY-----"; END = "-----END PRIVATE KEY-----"
if not text.startswith("-----BEGIN RSA PRIVATE KEY-----"): raise ValueError("no RSA key in this file")
host:5432:database:user
12:30:5432:00:10 not a line of that file
[REDACTED]
password=[REDACTED]
Authorization: Bearer [REDACTED]
postgresql://app:[REDACTED]@db:5432/app
""".strip().splitlines()
"""Placeholders, references, code, addresses, and the examples of vendors' own documentation."""


def decoys(seed: int = 1, repeats: int = 20) -> Iterator[str]:
    """All of them; the same for the same seed."""
    yield from FIXED
    maker = Maker(seed)
    for _ in range(repeats):
        yield from _made(maker)


def _made(maker: Maker) -> Iterator[str]:
    some = maker.bytes(32)
    yield f"request {maker.uuid()} took 3 ms"
    yield f'{{"id": "{maker.uuid()}", "parent": "{maker.uuid()}"}}'
    yield f"commit {sha1(some, usedforsecurity=False).hexdigest()}\nAuthor: Bob <bob@acme.test>"
    yield f"{maker.of(HEX, 7)}..{maker.of(HEX, 7)} main -> main"
    yield f"{sha256(some).hexdigest()}  dist/loom-0.1.0.tar.gz"
    yield f"image: acme/app@sha256:{sha256(some).hexdigest()}"
    yield f'"integrity": "sha512-{maker.base64(64)}",'
    yield f"h1:{maker.base64(32)} golang.org/x/text v0.3.0"
    yield f'{{ url = "https://files.pythonhosted.org/packages/{maker.of(HEX, 2)}/{maker.of(HEX, 60)}/a-1.0.whl" }}'
    yield f'hash = "sha256:{maker.of(HEX, 64)}", size = 12345 }}'
    yield f'<img src="data:image/png;base64,iVBORw0KGgo{maker.base64(600)}">'
    yield lines(maker.base64(900), 76)
    yield armoured("CERTIFICATE", maker.base64(900))
    yield armoured("PUBLIC KEY", maker.base64(294))
    yield armoured("PGP PUBLIC KEY BLOCK", maker.base64(900))
    yield f"ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAB{maker.base64(360)} bob@laptop"
    yield f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA{maker.base64(48)} bob@laptop"
    yield f"SHA256:{maker.base64(32).rstrip('=')} bob@laptop (ED25519)"
    yield f'"etag": "W/\\"{maker.of(HEX, 40)}\\"", "nonce": "{maker.base64(16)}"'
    yield f"https://cdn.acme.test/assets/app.{maker.of(HEX, 20)}.min.js?v={maker.of(HEX, 12)}"
    yield f"https://docs.acme.test/d/1{maker.of(WORD, 43)}/edit"
    yield f"{{a.{maker.of(HEX, 6)}=function(){{return b.{maker.of(HEX, 5)}}},c}}"
    yield f"price_{maker.of(WORD, 24)} cus_{maker.of(HEX, 14)} AC{maker.of(HEX, 32)}"
    yield f"trace_id={maker.of(HEX, 32)} span_id={maker.of(HEX, 16)}"
    yield f"pk_live_{maker.of(HEX, 24)}"


def armoured(kind: str, body: str) -> str:
    """Something public in the armour that keys have, too."""
    dashes = "-" * 5
    return f"{dashes}BEGIN {kind}{dashes}\n{lines(body)}\n{dashes}END {kind}{dashes}\n"
