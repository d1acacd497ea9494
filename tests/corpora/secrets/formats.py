"""Formats of secrets, by their vendors' own descriptions. `+` between parts keeps scanners from finding these lines."""

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from tests.corpora.secrets.making import ALNUM, BASE32, HEX, LOWER, UPPER, WORD, Maker, lines

Make: TypeAlias = Callable[[Maker], str]


def jwt(maker: Maker) -> str:
    """A signed token."""
    header = maker.urlsafe('{"alg":"HS256","typ":"JWT"}')
    claims = maker.urlsafe(f'{{"sub":"{maker.number(10)}","name":"Bob","iat":{maker.number(10)}}}')
    return f"{header}.{claims}.{maker.of(WORD, 43)}"


def _drawn(maker: Maker, length: int) -> str:
    """Characters with a capital letter among them."""
    return maker.of(ALNUM, length - 2) + "Q8"


def _vercel(kind: str, maker: Maker) -> str:
    return f"vc{kind}_{maker.of(ALNUM, 56)}"


TOKENS: Final[dict[str, Make]] = {
    "aws access key id": lambda m: "AK" + "IA" + m.of(BASE32, 16),
    "aws temporary key id": lambda m: "AS" + "IA" + m.of(BASE32, 16),
    "github personal": lambda m: "gh" + "p_" + m.of(ALNUM, 36),
    "github oauth": lambda m: "gh" + "o_" + m.of(ALNUM, 36),
    "github app": lambda m: "gh" + "s_" + m.of(ALNUM, 36),
    "github fine-grained": lambda m: "github" + "_pat_" + m.of(ALNUM, 22) + "_" + m.of(ALNUM, 59),
    "gitlab personal": lambda m: "gl" + "pat-" + m.of(WORD, 20),
    "gitlab routable": lambda m: "gl" + "pat-" + m.of(WORD, 27) + ".01." + m.of(LOWER, 9),
    "gitlab runner": lambda m: "gl" + "rt-" + m.of(WORD, 20),
    "slack bot": lambda m: f"xo{'x'}b-{m.number(12)}-{m.number(13)}-{m.of(ALNUM, 24)}",
    "slack user": lambda m: f"xo{'x'}p-{m.number(12)}-{m.number(12)}-{m.number(13)}-{m.of(HEX, 32)}",
    "slack app": lambda m: f"xa{'p'}p-1-A{m.of(UPPER, 10)}-{m.number(13)}-{m.of(HEX, 64)}",
    "stripe live": lambda m: "sk" + "_live_" + m.of(ALNUM, 24),
    "stripe long": lambda m: "sk" + "_live_51" + m.of(ALNUM, 97),
    "stripe test": lambda m: "sk" + "_test_" + m.of(ALNUM, 24),
    "stripe restricted": lambda m: "rk" + "_live_" + m.of(ALNUM, 24),
    "stripe webhook": lambda m: "whs" + "ec_" + m.of(ALNUM, 32),
    "openai old": lambda m: "s" + "k-" + m.of(ALNUM, 20) + "T3Blbk" + "FJ" + m.of(ALNUM, 20),
    "openai project": lambda m: "s" + "k-proj-" + m.of(WORD, 74) + "T3Blbk" + "FJ" + m.of(WORD, 74),
    "openai service": lambda m: "s" + "k-svcacct-" + m.of(WORD, 120),
    "anthropic": lambda m: "s" + "k-ant-api03-" + m.of(WORD, 93) + "AA",
    "anthropic oauth": lambda m: "s" + "k-ant-oat01-" + m.of(WORD, 93) + "AA",
    "openrouter": lambda m: "s" + "k-or-v1-" + m.of(HEX, 64),
    "groq": lambda m: "gs" + "k_" + m.of(ALNUM, 52),
    "xai": lambda m: "xa" + "i-" + m.of(ALNUM, 80),
    "google api key": lambda m: "AI" + "za" + m.of(WORD, 35),
    "google oauth token": lambda m: "ya" + "29." + m.of(WORD, 120),
    "google client secret": lambda m: "GOC" + "SPX-" + m.of(WORD, 28),
    "google refresh token": lambda m: "1/" + "/0" + m.of(WORD, 60),
    "azure client secret": lambda m: m.of(ALNUM, 3) + m.pick("2345678") + "Q" + "~" + m.of(ALNUM, 34),
    "npm": lambda m: "np" + "m_" + m.of(ALNUM, 36),
    "pypi": lambda m: "py" + "pi-AgEIcHlwaS5vcmc" + m.of(WORD, 140),
    "rubygems": lambda m: "ruby" + "gems_" + m.of(HEX, 48),
    "docker hub": lambda m: "dc" + "kr_pat_" + m.of(WORD, 27),
    "hugging face": lambda m: "h" + "f_" + m.of(ALNUM[:52], 34),
    "replicate": lambda m: "r" + "8_" + m.of(ALNUM, 37),
    "sendgrid": lambda m: "S" + "G." + m.of(WORD, 22) + "." + m.of(WORD, 43),
    "twilio api key": lambda m: "S" + "K" + m.of(HEX, 32),
    "mailgun": lambda m: "ke" + "y-" + m.of(HEX, 32),
    "discord bot": lambda m: m.urlsafe(m.number(19)) + "." + m.of(WORD, 6) + "." + m.of(WORD, 38),
    "digitalocean": lambda m: "do" + "p_v1_" + m.of(HEX, 64),
    "heroku": lambda m: "HR" + "KU-AA" + m.of(WORD, 58),
    "cloudflare user": lambda m: "cf" + "ut_" + m.of(ALNUM, 40) + m.of(HEX, 8),
    "cloudflare account": lambda m: "cf" + "at_" + m.of(ALNUM, 40) + m.of(HEX, 8),
    "cloudflare origin": lambda m: "v1" + ".0-" + m.of(HEX, 24) + "-" + m.of(HEX, 146),
    "databricks": lambda m: "da" + "pi" + m.of(HEX, 32),
    "linear": lambda m: "lin" + "_api_" + m.of(ALNUM, 40),
    "notion": lambda m: "nt" + "n_" + m.number(11) + m.of(ALNUM, 35),
    "notion old": lambda m: "sec" + "ret_" + m.of(ALNUM, 43),
    "shopify": lambda m: "shp" + "at_" + m.of(HEX, 32),
    "shopify shared": lambda m: "shp" + "ss_" + m.of(HEX, 32),
    "square": lambda m: "EA" + "AA" + m.of(WORD, 60),
    "square secret": lambda m: "sq0" + "csp-" + m.of(WORD, 43),
    "vault service": lambda m: "hv" + "s." + m.of(WORD, 95),
    "vault batch": lambda m: "hv" + "b." + m.of(WORD, 140),
    "grafana": lambda m: "gl" + "sa_" + m.of(ALNUM, 32) + "_" + m.of(HEX, 8),
    "new relic": lambda m: "NR" + "AK-" + m.of(UPPER, 27),
    "sentry": lambda m: "sn" + "tryu_" + m.of(HEX, 64),
    "atlassian": lambda m: "ATA" + "TT3xFfGF0" + m.of(WORD, 170) + "=" + m.of(UPPER, 8),
    "postman": lambda m: "PM" + "AK-" + m.of(HEX, 24) + "-" + m.of(HEX, 34),
    "figma": lambda m: "fi" + "gd_" + m.of(WORD, 40),
    "doppler": lambda m: "d" + "p.pt." + m.of(ALNUM, 43),
    "planetscale": lambda m: "psc" + "ale_tkn_" + m.of(WORD, 43),
    "supabase": lambda m: "sb" + "p_" + m.of(HEX, 40),
    "hubspot": lambda m: "pa" + "t-na1-" + m.uuid(),
    "age": lambda m: "AGE-SEC" + "RET-KEY-1" + m.of("QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58),
    "gitlab feed": lambda m: "gl" + "ft-" + m.of(WORD, 20),
    "gitlab incoming mail": lambda m: "gl" + "imt-" + m.of(WORD, 25),
    "gitlab runner registration": lambda m: "GR13" + "48941" + m.of(WORD, 20),
    "dynatrace": lambda m: "dt0" + "c01." + m.of(UPPER, 24) + "." + m.of(UPPER, 64),
    "easypost": lambda m: "EZ" + "AK" + m.of(ALNUM, 54),
    "easypost test": lambda m: "EZ" + "TK" + m.of(ALNUM, 54),
    "brevo": lambda m: "xke" + "ysib-" + m.of(HEX, 64) + "-" + m.of(ALNUM, 16),
    "shippo": lambda m: "ship" + "po_live_" + m.of(HEX, 40),
    "sourcegraph": lambda m: "sg" + "p_" + m.of(HEX, 16) + "_" + m.of(HEX, 40),
    "sourcegraph local": lambda m: "sg" + "p_local_" + m.of(HEX, 40),
    "pinecone": lambda m: "pc" + "sk_" + m.of(ALNUM, 5) + "_" + m.of(ALNUM, 63),
    "readme": lambda m: "rd" + "me_" + m.of(LOWER, 70),
    "flutterwave": lambda m: "FLW" + "SECK_TEST-" + m.of("abcdefgh0123456789", 32) + "-X",
    "artifactory": lambda m: "AK" + "Cp" + m.of(ALNUM, 69),
    "artifactory reference": lambda m: "cm" + "Vmd" + m.of(ALNUM, 59),
    "1password service account": lambda m: "op" + "s_" + m.urlsafe('{"email":"a"}')[:16] + m.of(ALNUM, 300),
    "1password secret key": lambda m: "A" + "3-" + "-".join(m.of(UPPER, n) for n in (6, 6, 5, 5, 5, 5)),
    "octopus deploy": lambda m: "AP" + "I-" + m.of(UPPER, 26),
    "clojars": lambda m: "CLO" + "JARS_" + m.of(LOWER, 60),
    "clickhouse": lambda m: "4b" + "1d" + m.of(ALNUM, 38),
    "fly": lambda m: "fo" + "1_" + m.of(WORD, 43),
    "fly macaroon": lambda m: "fm" + "2_" + m.of(ALNUM, 120),
    "sonar": lambda m: "sq" + "u_" + m.of(HEX, 40),
    "duffel": lambda m: "duf" + "fel_live_" + m.of(WORD, 43),
    "frame.io": lambda m: "fi" + "o-u-" + m.of(WORD, 64),
    "facebook page": lambda m: "EA" + "AM" + m.of(ALNUM, 180),
    "defined networking": lambda m: "dn" + "key-" + m.of(LOWER, 26) + "-" + m.of(LOWER, 52),
    "adobe": lambda m: "p8" + "e-" + m.of(LOWER, 32),
    "infracost": lambda m: "ic" + "o-" + m.of(ALNUM, 32),
    "prefect": lambda m: "pn" + "u_" + m.of(ALNUM, 36),
    "settlemint": lambda m: "sm" + "_pat_" + m.of(ALNUM, 16),
    "harness": lambda m: "pa" + "t." + m.of(ALNUM, 22) + "." + m.of(ALNUM, 24) + "." + m.of(ALNUM, 20),
    "terraform cloud": lambda m: m.of(ALNUM, 14) + ".atla" + "sv1." + m.of(WORD, 65),
    "maxmind": lambda m: m.of(ALNUM, 6) + "_" + m.of(ALNUM, 29) + "_m" + "mk",
    "openshift": lambda m: "sha" + "256~" + m.of(WORD, 43),
    "grafana cloud": lambda m: "gl" + "c_" + m.of(ALNUM, 60),
    "circleci": lambda m: "CCI" + "PAT_" + m.of(ALNUM, 22) + "_" + m.of(HEX, 40),
    "tailscale": lambda m: "ts" + "key-auth-" + m.of(ALNUM, 12) + "-" + m.of(ALNUM, 32),
    "bedrock": lambda m: "AB" + "SK" + m.of(ALNUM, 120),
    "plaid": lambda m: "access-" + "production-" + m.uuid(),
    "e2b": lambda m: "e2" + "b_" + m.of(HEX, 40),
    "pinecone in one word": lambda m: "pc" + "sk_" + m.of(ALNUM, 60),
    "pinecone short": lambda m: "pc" + "sk_" + m.of(ALNUM, 5) + "_" + m.of(ALNUM, 40),
    "resend": lambda m: "r" + "e_" + _drawn(m, 8) + "_" + m.of(ALNUM, 24),
    **{f"vercel {kind}": partial(_vercel, kind) for kind in "apckir"},
    "supabase secret": lambda m: "sb_" + "secret_" + m.of(WORD, 22) + "_" + m.of(ALNUM, 8),
    "supabase scoped": lambda m: "sb" + "p_v0_" + m.of(HEX, 40),
    "weights and biases": lambda m: "wan" + "db_v1_" + m.of(WORD, 77),
    "airtable": lambda m: "pa" + "t" + m.of(ALNUM, 14) + "." + m.of(HEX, 64),
    "mapbox": lambda m: "s" + "k.eyJ1" + m.of(WORD, 80) + "." + m.of(WORD, 22),
    "mapbox temporary": lambda m: "t" + "k.eyJ1" + m.of(WORD, 80) + "." + m.of(WORD, 22),
    "fireworks": lambda m: "f" + "w_" + _drawn(m, 22),
    "voyage": lambda m: "p" + "a-" + _drawn(m, 43),
    "modal id": lambda m: "a" + "k-" + _drawn(m, 22),
    "modal secret": lambda m: "a" + "s-" + _drawn(m, 22),
    "firecrawl": lambda m: "f" + "c-" + m.of(HEX, 32),
    "daytona": lambda m: "dt" + "n_" + m.of(HEX, 64),
    "browserbase": lambda m: "bb_" + "live_" + m.of(WORD, 27),
    "helicone": lambda m: "s" + "k-helicone-" + "-".join(m.of(LOWER, 7) for _ in range(4)),
    "runpod": lambda m: "rp" + "a_" + m.of(UPPER, 46),
    "anyscale": lambda m: "esec" + "ret_" + m.of(LOWER, 26),
    "gitlab workspace": lambda m: "gl" + "wt-" + m.of(WORD, 26),
    "depot": lambda m: "dep" + "ot_project_" + m.of(HEX, 64),
    "crates.io": lambda m: "ci" + "o" + _drawn(m, 32),
    "jsr": lambda m: "js" + "rp_" + m.of(ALNUM, 40),
    "google agent key": lambda m: "AQ" + ".Ab8" + m.of(WORD, 50),
    "scaleway": lambda m: "SC" + "W" + m.of(UPPER, 17),
    "tencent": lambda m: "AK" + "ID" + _drawn(m, 32),
    "yandex oauth": lambda m: "y" + "0_" + m.of(WORD, 55),
    "yandex iam": lambda m: "t1" + ".9euel" + m.of(WORD, 90) + "." + m.of(WORD, 86),
    "databricks oauth": lambda m: "do" + "se" + m.of(HEX, 32),
    "neon": lambda m: "na" + "pi_" + m.of(LOWER, 64),
    "neon password": lambda m: "np" + "g_" + m.of(ALNUM, 12),
    "xata": lambda m: "xa" + "u_" + m.of(ALNUM, 37),
    "mongodb atlas": lambda m: "mdb_" + "sa_sk_" + m.of(WORD, 40),
    "cockroach": lambda m: "CCD" + "B1_" + m.of(ALNUM, 22) + "_" + m.of(ALNUM, 40),
    "aiven": lambda m: "AV" + "NS_" + m.of(WORD, 19),
    "confluent": lambda m: "cf" + "lt" + m.of(ALNUM, 60),
    "elastic": lambda m: "es" + "su_" + m.of(ALNUM, 80),
    "hugging face with digits": lambda m: "h" + "f_" + _drawn(m, 34),
    "paddle": lambda m: "pd" + "l_live_apikey_" + m.of(LOWER, 26) + "_" + m.of(ALNUM, 22) + "_" + m.of(ALNUM, 3),
    "shopify user": lambda m: "shp" + "ua_" + m.of(HEX, 32),
    "slack client": lambda m: f"xo{'x'}c-{m.number(12)}-{m.number(12)}-{m.of(HEX, 64)}",
    "slack cookie": lambda m: f"xo{'x'}d-{m.of(ALNUM, 120)}",
    "mailersend": lambda m: "ml" + "sn." + m.of(HEX, 64),
    "courier": lambda m: "pk_" + "prod_" + m.of(UPPER, 28),
    "linear webhook": lambda m: "lin" + "_wh_" + m.of(ALNUM, 40),
    "clickup": lambda m: "p" + "k_" + m.number(8) + "_" + m.of(UPPER, 32),
    "trello": lambda m: "AT" + "TA" + m.of(HEX, 64),
    "datadog": lambda m: "dda" + "pi_" + m.of(ALNUM, 40),
    "honeycomb": lambda m: "hca" + "ik_01" + m.of(LOWER, 56),
    "posthog": lambda m: "ph" + "s_" + m.of(ALNUM, 43),
    "axiom": lambda m: "xa" + "at-" + m.uuid(),
    "launchdarkly": lambda m: "sd" + "k-" + m.uuid(),
    "rootly": lambda m: "root" + "ly_" + m.of(HEX, 64),
    "snyk": lambda m: "snyk" + "_uat." + m.of(HEX, 8) + ".eyJ" + m.of(WORD, 60) + "." + m.of(WORD, 43),
    "socket": lambda m: "skt" + "sec_" + m.of(WORD, 60),
    "dbt": lambda m: "db" + "tc_" + m.of(WORD, 40),
    "ubidots": lambda m: "BB" + "FF-" + m.of(ALNUM, 30),
    "inngest": lambda m: "sign" + "key-prod-" + m.of(HEX, 64),
    "trigger": lambda m: "t" + "r_prod_" + m.of(ALNUM, 20),
    "polar": lambda m: "pol" + "ar_oat_" + m.of(WORD, 43),
    "unkey": lambda m: "un" + "key_" + _drawn(m, 22),
    "adafruit": lambda m: "ai" + "o_" + _drawn(m, 28),
    "weblate": lambda m: "wl" + "u_" + m.of(ALNUM, 40),
    "zuplo": lambda m: "zp" + "ka_" + m.of(LOWER, 32) + "_" + m.of(HEX, 8),
    "brave": lambda m: "BS" + "A" + _drawn(m, 28),
    "openai ephemeral": lambda m: "e" + "k_" + m.of(HEX, 32),
    "openai session": lambda m: "se" + "ss-" + _drawn(m, 40),
    "cursor": lambda m: "cr" + "sr_" + m.of(HEX, 64),
    "bedrock short-term": lambda m: "bedrock-" + "api-key-" + m.of(ALNUM, 300),
    "mem0": lambda m: "m" + "0-" + _drawn(m, 40),
    "letta": lambda m: "s" + "k-let-" + m.of(ALNUM, 80),
    "llamacloud": lambda m: "ll" + "x-" + m.of(ALNUM, 48),
    "chroma": lambda m: "c" + "k-" + _drawn(m, 44),
    "turbopuffer": lambda m: "tp" + "uf_" + m.of(ALNUM, 32),
    "cartesia": lambda m: "sk_" + "car_" + m.of(ALNUM, 22),
    "luma": lambda m: "lu" + "ma-" + m.uuid(),
    "black forest labs": lambda m: "bf" + "l_" + m.of(ALNUM, 32),
    "jwt": jwt,
}
"""Secrets that say by themselves what they are, in whatever text they stand."""

IN_TEXT: Final[dict[str, Callable[[Maker], tuple[str, str]]]] = {
    "aws secret key in env": lambda m: _in("AWS_SECRET_ACCESS_KEY={}", m.base64(30)),
    "aws secret key in ini": lambda m: _in(
        "[default]\naws_secret_access_key = {}\nregion = eu-central-1", m.base64(30)
    ),
    "aws secret key in json": lambda m: _in('{{"SecretAccessKey": "{}", "Expiration": "2026"}}', m.base64(30)),
    "aws session token": lambda m: _in("export AWS_SESSION_TOKEN={}", m.base64(240)),
    "aws session token in json": lambda m: _in('{{"SessionToken": "{}"}}', m.base64(690)),
    "azure storage": lambda m: _in(
        "DefaultEndpointsProtocol=https;AccountName=acme;AccountKey={};EndpointSuffix=core.windows.net", m.base64(64)
    ),
    "azure sas": lambda m: _in(
        "https://acme.blob.core.windows.net/c/b?sv=2022-11-02&se=2026-01-01&sr=b&sp=r&sig={}",
        m.base64(32).replace("+", "%2B").replace("/", "%2F").replace("=", "%3D"),
    ),
    "slack webhook": lambda m: _in(
        "https://hooks.sl" + "ack.com/services/{}", f"T{m.of(UPPER, 10)}/B{m.of(UPPER, 10)}/{m.of(ALNUM, 24)}"
    ),
    "discord webhook": lambda m: _in("https://disc" + "ord.com/api/web" + f"hooks/{m.number(18)}/{{}}", m.of(WORD, 68)),
    "telegram": lambda m: _in(f"https://api.telegram.org/bot{m.number(10)}:{{}}/getMe", "A" + "A" + m.of(WORD, 33)),
    "telegram in env": lambda m: _in(f"BOT={m.number(9)}:{{}}", "A" + "A" + m.of(WORD, 33)),
    "heroku old": lambda m: _in("HEROKU_API_KEY={}", m.uuid()),
    "uuid in a key": lambda m: _in("ACME_KEY={}", m.uuid()),
    "uuid in a token": lambda m: _in('"SNYK_TOKEN": "{}"', m.uuid().upper()),
    "facebook app": lambda m: _in(f"facebook {m.number(16)}|{{}}", m.of(WORD, 27)),
    "rsa key without armor": lambda m: _in("{}", "MI" + "IEpAIBAAKCAQEA" + m.base64(600)),
    "make, conditional": lambda m: _in('ACME_TOKEN ?= "{}"', m.of(ALNUM, 40)),
    "make, immediate": lambda m: _in('ACME_TOKEN ::= "{}"', m.of(ALNUM, 40)),
    "php, appended": lambda m: _in('$acmeToken .= "{}";', m.of(ALNUM, 40)),
    "go, typed": lambda m: _in('var acmeToken string = "{}"', m.of(ALNUM, 40)),
    "csv": lambda m: _in("acmeToken,{},", m.of(ALNUM, 40)),
    "yaml block": lambda m: _in("acme_token: |\n  {}\nother: 1", m.of(ALNUM, 40)),
    "xml in lines": lambda m: _in("<acmeToken>\n    {}\n</acmeToken>", m.of(ALNUM, 40)),
    "curl user, continued": lambda m: _in(
        "curl -k https://acme.test \\\n  -d 'x' \\\n  --user  'api:{}'", m.safe_password()
    ),
    "curl without a user": lambda m: _in('curl -u ":{}" https://acme.test', m.safe_password()),
    "short token": lambda m: _in("Api-Token: {}", "aB7" + m.of("0123456789ABCxyz", 8) + "9Zq2"),
    "cloudflare old": lambda m: _in("CLOUDFLARE_API_TOKEN={}", m.of(WORD, 40)),
    "datadog": lambda m: _in("DD_API_KEY={}", m.of(HEX, 32)),
    "datadog header": lambda m: _in(
        'curl -H "DD-API-KEY: {}" https://api.datadoghq.com/api/v1/validate', m.of(HEX, 32)
    ),
    "datadog app key": lambda m: _in("DD_APP_KEY: {}", m.of(HEX, 40)),
    "twilio auth token": lambda m: _in('client = Client("AC" + sid, auth_token="{}")', m.of(HEX, 32)),
    "vault old": lambda m: _in("VAULT_TOKEN=s.{}", m.of(ALNUM, 24)),
    "bearer": lambda m: _in("Authorization: Bearer {}", m.of(WORD, 40)),
    "bearer in curl": lambda m: _in("curl -sH 'Authorization: Bearer {}' https://api.test/v1", m.of(HEX, 40)),
    "bearer in python": lambda m: _in('headers = {{"Authorization": f"Bearer {}"}}', m.of(ALNUM, 48)),
    "basic": lambda m: _in("authorization: Basic {}", m.encoded(f"admin:{m.safe_password()}")),
    "docker config": lambda m: _in(
        '{{"auths": {{"https://index.docker.io/v1/": {{"auth": "{}"}}}}}}', m.encoded(f"acme:{m.safe_password()}")
    ),
    "npmrc": lambda m: _in("//registry.npmjs.org/:_authToken={}", m.uuid()),
    "postgres url": lambda m: _in(
        "DATABASE_URL=postgresql://app:{}@db.internal:5432/app?sslmode=require", m.safe_password()
    ),
    "redis url": lambda m: _in("redis://:{}@cache:6379/0", m.safe_password()),
    "mongo url": lambda m: _in("mongodb+srv://root:{}@cluster0.ab1cd.mongodb.net/?retryWrites=true", m.safe_password()),
    "amqp url": lambda m: _in("broker_url = 'amqps://svc:{}@mq/vhost'", m.of(ALNUM, 20)),
    "git url": lambda m: _in("origin  https://build:{}@git.acme.test/a/b.git (fetch)", m.of(LOWER, 24)),
    "git url with token only": lambda m: _in("git clone https://{}@git.acme.test/a/b.git", m.of(HEX, 40)),
    "ado.net": lambda m: _in("Server=tcp:db,1433;User ID=sa;Password={};Encrypt=True;", m.safe_password()),
    "libpq": lambda m: _in("host=db user=app password={} dbname=app", m.safe_password()),
    "netrc": lambda m: _in("machine api.acme.test login bob password {}", m.safe_password()),
    "netrc in lines": lambda m: _in("machine api.acme.test\n  login bob\n  password {}\n", m.safe_password()),
    "pgpass": lambda m: _in("db.internal:5432:app:app_user:{}\n", m.safe_password()),
    "curl user": lambda m: _in("curl -u admin:{} https://acme.test/", m.safe_password()),
    "env": lambda m: _in("DB_PASSWORD={}\nDB_HOST=db\n", m.password()),
    "env, human": lambda m: _in("export SMTP_PASSWORD='{}'", m.human_password()),
    "yaml": lambda m: _in("db:\n  user: app\n  password: {}\n  port: 5432\n", m.password()),
    "yaml, quoted": lambda m: _in('  adminPassword: "{}"', m.password()),
    "json": lambda m: _in('{{"user": "app", "password": "{}", "port": 1}}', m.password()),
    "json in json": lambda m: _in('{{"body": "{{\\"client_secret\\": \\"{}\\"}}"}}', m.of(WORD, 40)),
    "toml": lambda m: _in('api_key = "{}"', m.of(ALNUM, 32)),
    "python": lambda m: _in('API_TOKEN: Final[str] = "{}"', m.of(ALNUM, 40)),
    "python call": lambda m: _in('connect(host="db", password="{}", port=1)', m.human_password()),
    "python environ": lambda m: _in('os.environ.setdefault("STRIPE_SECRET", "{}")', m.of(ALNUM, 32)),
    "javascript": lambda m: _in("const clientSecret = '{}';", m.of(WORD, 36)),
    "go": lambda m: _in('apiKey := "{}"', m.of(ALNUM, 40)),
    "ruby": lambda m: _in(":secret_key_base => '{}'", m.of(HEX, 128)),
    "java properties": lambda m: _in("spring.datasource.password={}", m.password()),
    "xml": lambda m: _in("<server><id>x</id><password>{}</password></server>", m.safe_password()),
    "flag": lambda m: _in("mysqldump --user=root --password={} app", m.safe_password()),
    "flag with space": lambda m: _in("deploy --api-token {} --region eu", m.of(ALNUM, 32)),
    "sql": lambda m: _in("ALTER USER app WITH PASSWORD '{}';", m.human_password()),
    "header": lambda m: _in("X-Api-Key: {}", m.of(ALNUM, 32)),
    "query": lambda m: _in("GET /v1/items?api_key={}&page=2 HTTP/1.1", m.of(HEX, 40)),
    "log line": lambda m: _in("2026-01-01 INFO login ok token={} user=bob", m.of(ALNUM, 40)),
    "terraform": lambda m: _in('  secret_key = "{}"', m.base64(30)),
    "kubernetes": lambda m: _in("  clientSecret: {}", m.base64(32)),
    "dockerfile": lambda m: _in("ENV GITHUB_TOKEN={}", m.of(ALNUM, 40)),
    "coloured": lambda m: _in("\x1b[36mpassword\x1b[0m=\x1b[35m{}\x1b[0m", m.safe_password()),
    "docker login": lambda m: _in("docker login -u bob -p {} registry.acme.test", m.safe_password()),
    "sshpass": lambda m: _in("sshpass -p '{}' ssh bob@host", m.human_password()),
    "mysql": lambda m: _in("mysql -uroot -p{} app", m.safe_password()),
    "redis-cli": lambda m: _in("redis-cli -a {} ping", m.safe_password()),
    "redis.conf": lambda m: _in("requirepass {}", m.safe_password()),
    "cookie": lambda m: _in("Set-Cookie: sessionid={}; HttpOnly", m.of(LOWER, 32)),
    "sentence": lambda m: _in("Your password is {}", m.password()),
    "ansible": lambda m: _in("ansible_become_pass: {}", m.password()),
    "wireguard": lambda m: _in("PrivateKey = {}", m.base64(32)),
    "attribute": lambda m: _in('<add key="DbPassword" value="{}" />', m.safe_password()),
    "name and value": lambda m: _in('{{"name": "API_TOKEN", "value": "{}"}}', m.of(ALNUM, 32)),
    "other scheme": lambda m: _in("Authorization: token {}", m.of(HEX, 40)),
    "django": lambda m: _in("SECRET_KEY = 'django-insecure-{}'", m.of(LOWER, 50)),
    "rsa key": lambda m: _key("RSA PRIVATE KEY", m.base64(1190)),
    "pkcs8 key": lambda m: _key("PRIVATE KEY", m.base64(1218)),
    "ec key": lambda m: _key("EC PRIVATE KEY", m.base64(121)),
    "openssh key": lambda m: _key("OPENSSH PRIVATE KEY", m.base64(399)),
    "encrypted key": lambda m: _key(
        "RSA PRIVATE KEY", m.base64(1192), f"Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,{m.of(UPPER, 32)}\n\n"
    ),
    "pgp key": lambda m: _key("PGP PRIVATE KEY BLOCK", m.base64(900), "Version: GnuPG v2\n\n"),
    "service account": lambda m: _escaped(
        '{{"type": "service_account", "private_key": "{}", "client_email": "a@b"}}', _key("PRIVATE KEY", m.base64(1218))
    ),
    "key in a variable": lambda m: _escaped('DEPLOY_KEY="{}"', _key("OPENSSH PRIVATE KEY", m.base64(399))),
    "key cut at its end": lambda m: _cut(_key("RSA PRIVATE KEY", m.base64(1190)), slice(0, 800)),
    "key cut at its beginning": lambda m: _cut(_key("RSA PRIVATE KEY", m.base64(1190)), slice(748, None)),
}
"""Secrets that are known by what stands around them: the text, and the secret in it."""


def _in(text: str, secret: str) -> tuple[str, str]:
    return text.replace("{{", "\1").replace("}}", "\2").replace("{}", secret).replace("\1", "{").replace(
        "\2", "}"
    ), secret


def _key(kind: str, body: str, headers: str = "") -> tuple[str, str]:
    dashes = "-" * 5
    return f"{dashes}BEGIN {kind}{dashes}\n{headers}{lines(body)}\n{dashes}END {kind}{dashes}\n", lines(body)


def _escaped(text: str, key: tuple[str, str]) -> tuple[str, str]:
    whole, body = (part.replace("\n", "\\n") for part in key)
    return _in(text, whole)[0], body


def _cut(key: tuple[str, str], part: slice) -> tuple[str, str]:
    whole, body = key[0][part], key[1]
    return whole, "\n".join(line for line in body.splitlines() if line in whole)
