"""Patterns for the vendors' secret formats and for the locations of credentials in text.

A shape consists of a literal, which is fast to find, and a pattern that is matched at the literal's position. The text
is never searched for the patterns themselves, so a text without secrets requires only one `str.find` call per literal.
To limit backtracking, every pattern is either bounded or a single run of one character class.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

MASK: Final = "[REDACTED]"


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Compile the pattern of a shape when its literal is first found. Compiling them all takes 50 ms."""
    return re.compile(pattern, re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A secret format."""

    literal: str
    """A string that every secret of this format contains."""
    pattern: str
    """The regular expression that is matched at the literal. Its `secret` group is redacted, or the whole match if
    there is no such group.
    """
    before: int = 0
    """Number of characters that the match contains before the literal."""


EDGE: Final = (
    r"(?:(?<![A-Za-z0-9_])|(?<=(?<!\\)\\[nrtbf])|(?<=\\u[0-9A-Fa-f]{4})|(?<=%[0-9A-Fa-f]{2})"
    r"|(?<=\x1b\[[mK])|(?<=[\[;]\dm)|(?<=[\[;]\d\dm)|(?<=[\[;]\d\d\dm))"
)
"""Matches the start of a word, even directly after an escape sequence of JSON, a URL or a terminal. Such sequences end
in a letter or a digit.
"""

RUN: Final = re.compile(r"[A-Za-z0-9_-]{20,}")
"""Matches a long word. Most secrets contain one, and most lines don't."""

_WORD: Final = "[A-Za-z0-9_-]"
_ALNUM: Final = "[A-Za-z0-9]"
_UUID: Final = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_DRAWN: Final = r"(?=[A-Za-z_-]{0,40}\d)(?=[a-z0-9_-]{0,40}[A-Z])"
"""Look-ahead for a digit and a capital letter, for prefixes that also begin ordinary names."""

_GITLAB: Final = ("dt", "ft", "rt", "wt", "ptt", "cbt", "oas", "imt", "soat", "ffct", "agent")

_PREFIXED: Final[dict[str, str]] = {
    **dict.fromkeys(("AKIA", "ASIA", "ABIA", "ACCA"), r"(?![A-Z0-9]{9}EXAMPLE)[A-Z2-7]{16}(?![\w/+=])"),
    "eyJ": rf"{_WORD}{{16,4000}}\.(?:eyJ{_WORD}{{7,}}(?:\.{_WORD}*)?|(?:{_WORD}*\.){{3}}{_WORD}{{10,}})",
    # code hosting and packages
    **{f"gh{kind}_": rf"{_ALNUM}{{36,}}" for kind in "pousr"},
    "github_pat_": r"\w{22,}",
    "glpat-": r"[\w.-]{20,}",
    **{f"gl{kind}-": r"[\w.-]{20,}" for kind in _GITLAB},
    "GR1348941": rf"{_WORD}{{20,}}",
    "ATCTT3": r"[\w=-]{60,}",
    "AKCp": rf"{_ALNUM}{{69,}}",
    "cmVmd": rf"{_ALNUM}{{59}}(?!{_WORD})",
    "sgp_": r"(?:(?:[a-fA-F0-9]{16}|local)_)?[a-fA-F0-9]{40}(?![A-Za-z0-9])|[A-Za-z0-9]{64}(?![A-Za-z0-9])",
    "slk_": r"[a-f0-9]{64}",
    "CLOJARS_": rf"{_ALNUM}{{50,}}",
    "oy2": r"[a-z0-9]{43}(?![A-Za-z0-9])",
    "bkua_": r"[a-f0-9]{40}",
    "bkct_": rf"{_ALNUM}{{40}}",
    "depot_": r"(?:project|user|org)_[a-f0-9]{64}",
    "cio": rf"{_DRAWN}{_ALNUM}{{32}}(?!{_WORD})",
    "jsrp_": rf"{_ALNUM}{{32,}}",
    "csa_": r"[a-z0-9]{32}(?![A-Za-z0-9_])",
    "sktsec_": rf"{_WORD}{{40,}}",
    "crsr_": r"[a-f0-9]{64}",
    "key_": r"[a-f0-9]{64,128}(?![A-Za-z0-9])",
    "CCIPAT_": rf"{_ALNUM}{{22}}_[a-f0-9]{{40}}",
    "CCIPRJ_": rf"{_ALNUM}{{22}}_[a-f0-9]{{40}}",
    "API-": r"(?=[A-Z]{0,25}\d)[A-Z0-9]{26}(?![A-Za-z0-9])",
    **{f"sq{kind}_": rf"{_ALNUM}{{40}}(?!{_WORD})" for kind in "upa"},
    "ATATT3": r"[\w=-]{60,}",
    "ATBB": rf"{_ALNUM}{{28,}}\b",
    "npm_": rf"{_ALNUM}{{36,}}",
    "pypi-AgE": rf"{_WORD}{{50,}}",
    "rubygems_": r"[a-f0-9]{48}",
    "dckr_pat_": rf"{_WORD}{{20,}}",
    "dckr_oat_": rf"{_WORD}{{20,}}",
    # models
    "sk-ant-": rf"{_WORD}{{24,}}",
    "sk-": r"(?:proj|svcacct|admin|None|or-v1|lf)-(?=[\w-]{0,200}\d)[\w-]{24,}|(?=[A-Za-z]{0,40}\d)[A-Za-z0-9]{32,}",
    "hf_": r"(?=[a-z0-9]{0,34}[A-Z])[A-Za-z0-9]{30,}",
    "api_org_": r"[A-Za-z]{30,}",
    "gsk_": rf"{_ALNUM}{{48,}}",
    "xai-": rf"{_ALNUM}{{60,}}",
    "pplx-": rf"{_ALNUM}{{40,}}",
    "r8_": rf"{_ALNUM}{{37,}}",
    "lsv2_": r"(?:pt|sk)_[a-f0-9]{32}_[a-f0-9]{10}",
    "tvly-": r"[\w-]{28,}",
    "pcsk_": rf"(?:{_ALNUM}{{4,8}}_)?{_ALNUM}{{32,}}",
    "nvapi-": rf"{_WORD}{{60,}}",
    "csk-": rf"{_ALNUM}{{40,}}",
    "tgp_v1_": rf"{_WORD}{{40,}}",
    "jina_": rf"{_ALNUM}{{50,}}",
    "sk_": rf"(?:[a-f0-9]{{48}}|{_DRAWN}{_WORD}{{43}})(?!{_WORD})",
    "e2b_": r"[a-f0-9]{40}(?![A-Za-z0-9])",
    "wandb_v1_": rf"{_WORD}{{40,}}",
    "fw_": rf"{_DRAWN}{_ALNUM}{{22,24}}(?!{_WORD})",
    "pa-": rf"{_DRAWN}{_WORD}{{43}}(?!{_WORD})",
    **{f"{kind}-": rf"{_DRAWN}{_ALNUM}{{22}}(?!{_WORD})" for kind in ("ak", "as")},
    "fc-": r"[a-f0-9]{32}(?![A-Za-z0-9])",
    "dtn_": r"[a-f0-9]{64}",
    "bb_live_": rf"{_WORD}{{20,}}",
    "sk-helicone-": r"(?:[a-z]{2}-)?[a-z0-9]{7}(?:-[a-z0-9]{7}){3}",
    "sk_car_": rf"{_ALNUM}{{20,}}",
    "rpa_": r"[A-Z0-9]{40,}",
    "esecret_": r"[a-z0-9]{24,}",
    "ek_": r"[a-f0-9]{32}(?![A-Za-z0-9])",
    "sess-": rf"{_DRAWN}{_ALNUM}{{40}}(?!{_WORD})",
    "m0-": rf"{_DRAWN}{_ALNUM}{{40}}(?!{_WORD})",
    "llx-": rf"{_ALNUM}{{40,}}",
    "ck-": rf"{_DRAWN}{_ALNUM}{{44}}(?!{_WORD})",
    "tpuf_": rf"{_ALNUM}{{32,}}",
    "bfl_": rf"{_ALNUM}{{32}}(?!{_WORD})",
    **{f"{kind}-": _UUID for kind in ("ctx7sk", "luma")},
    "BSA": rf"{_DRAWN}{_WORD}{{28}}(?!{_WORD})",
    # clouds
    "AIza": rf"{_WORD}{{35,}}",
    "GOCSPX-": rf"{_WORD}{{24,}}",
    "dop_v1_": r"[a-f0-9]{64}",
    "doo_v1_": r"[a-f0-9]{64}",
    "dor_v1_": r"[a-f0-9]{64}",
    "HRKU-": rf"(?:{_WORD}{{58,}}|[0-9a-fA-F-]{{36}})",
    "cfk_": rf"{_ALNUM}{{40,}}",
    "cfut_": rf"{_ALNUM}{{40,}}",
    "cfat_": rf"{_ALNUM}{{40,}}",
    "dapi": r"[a-f0-9]{32}(?:-\d)?(?![A-Za-z0-9])",
    "LTAI": rf"{_ALNUM}{{17,20}}(?!{_WORD})",
    "pul-": r"[a-f0-9]{40}",
    "sbp_": r"(?:v0_)?[a-f0-9]{40}",
    "sb_secret_": rf"{_WORD}{{20,}}",
    **{f"vc{kind}_": rf"{_ALNUM}{{24,}}" for kind in "pckir"},
    "vca_": rf"{_ALNUM}{{24,}}",
    "napi_": r"[a-z0-9]{60,}",
    "xau_": rf"{_ALNUM}{{30,}}",
    "mdb_sa_sk_": rf"{_WORD}{{30,}}",
    "CCDB1_": rf"{_ALNUM}{{22}}_{_ALNUM}{{40}}",
    "AVNS_": rf"{_WORD}{{19,}}",
    "SCW": r"(?=[A-Z]{0,17}\d)[A-Z0-9]{17}(?![A-Za-z0-9])",
    "IKID": rf"{_DRAWN}{_ALNUM}{{32}}(?!{_WORD})",
    "AKID": rf"{_DRAWN}{_ALNUM}{{32}}(?!{_WORD})",
    "y0_": rf"{_WORD}{{50,}}",
    "dose": r"[a-f0-9]{32}(?![A-Za-z0-9])",
    "pscale_": r"(?:tkn|pw|oauth)_[\w.=-]{32,}",
    "AGE-SECRET-KEY-1": r"[0-9A-Z]{58}",
    "dnkey-": r"[A-Za-z0-9=_-]{26}-[A-Za-z0-9=_-]{52}",
    "fo1_": rf"{_WORD}{{43}}",
    "4b1d": rf"(?=[0-9a-f]{{0,37}}[g-zA-Z]){_ALNUM}{{38}}(?!{_WORD})",
    "tskey-": r"[a-z]+-[A-Za-z0-9]{8,}-[A-Za-z0-9]{20,}",
    "tk-us-": rf"{_WORD}{{48}}",
    "nfp_": rf"{_ALNUM}{{36}}",
    "rnd_": rf"{_ALNUM}{{28,}}",
    "pnu_": rf"{_ALNUM}{{36}}",
    "ico-": rf"{_ALNUM}{{32}}(?!{_WORD})",
    "AQVN": rf"{_WORD}{{35,38}}(?!{_WORD})",
    "s-s4t2": r"(?:ud|af)-[a-fA-F0-9]{64}",
    "p8e-": rf"{_ALNUM}{{32}}(?!{_WORD})",
    # services
    **{f"xox{kind}-": r"[A-Za-z0-9-]{16,}" for kind in "abceoprs"},
    "xoxd-": r"[\w%+/=-]{60,}",
    "re_": rf"{_DRAWN}(?:{_ALNUM}{{8}}_{_ALNUM}{{24}}|{_ALNUM}{{32}})(?!{_WORD})",
    "ak_": rf"{_DRAWN}{_WORD}{{20,27}}(?!{_WORD})",
    "am_": r"[a-f0-9]{64}",
    "arc_": rf"{_DRAWN}{_ALNUM}{{40}}(?!{_WORD})",
    "pk_": r"\d{6,9}_[A-Z0-9]{32}(?![A-Za-z0-9])",
    "lin_wh_": rf"{_ALNUM}{{32,}}",
    "pk_prod_": r"[A-Z0-9]{28}(?![A-Za-z0-9])",
    "pdl_": r"(?:(?:live|sdbx)_apikey_[a-z0-9]{26}_[A-Za-z0-9]{22}_[A-Za-z0-9]{3}|ntfset_[a-z0-9]{26}_[\w+/-]{32})",
    "ATTA": r"[a-fA-F0-9]{64}",
    "figu_": rf"{_WORD}{{36,}}",
    "ddapi_": rf"{_ALNUM}{{32,}}",
    **{f"hc{kind}_": r"[a-z0-9]{50,}" for kind in ("aik", "xmk", "xik", "aic", "bmk")},
    "phs_": rf"{_ALNUM}{{40,}}",
    **{f"{kind}-": _UUID for kind in ("xaat", "xapt", "xait", "sdk", "api")},
    "rootly_": r"[a-f0-9]{64}",
    **{f"dbt{kind}_": r"[\w=-]{30,}" for kind in "cu"},
    "BBFF-": rf"{_ALNUM}{{30}}",
    "signkey-": r"(?:prod|test|branch)-[a-f0-9]{64}",
    "tr_": rf"(?:prod|dev|stg|preview)_{_ALNUM}{{20,}}",
    "polar_": rf"(?:oat|pat|whs)_{_WORD}{{32,}}",
    "unkey_": rf"{_DRAWN}{_ALNUM}{{20,}}",
    "aio_": rf"{_DRAWN}{_ALNUM}{{28}}(?!{_WORD})",
    **{f"wl{kind}_": rf"{_ALNUM}{{36,}}" for kind in "up"},
    "zpka_": r"[a-z0-9]{32}_[a-f0-9]{8}",
    "lip_": rf"{_DRAWN}{_ALNUM}{{20}}(?!{_WORD})",
    "ion_": rf"{_DRAWN}{_ALNUM}{{42}}(?!{_WORD})",
    "xapp-": r"\d-[A-Za-z0-9-]{20,}",
    **{f"{kind}_{mode}_": rf"{_ALNUM}{{16,}}" for kind in ("sk", "rk") for mode in ("live", "test", "prod")},
    "key-": r"[a-f0-9]{32}(?![A-Za-z0-9])",
    "SK": r"[a-f0-9]{32}(?![A-Za-z0-9])",
    "lin_api_": rf"{_ALNUM}{{32,}}",
    "lin_oauth_": r"[a-f0-9]{32,}",
    "ntn_": rf"{_ALNUM}{{40,}}",
    "secret_": rf"(?=[A-Za-z]{{0,42}}\d){_ALNUM}{{43}}(?!{_WORD})",
    **{f"{kind}_": r"[a-fA-F0-9]{32}" for kind in ("shpat", "shpca", "shppa", "shpss", "shptka", "shpua")},
    "EAAA": rf"{_WORD}{{60,}}",
    "sq0atp-": rf"{_WORD}{{22,}}",
    "sq0csp-": rf"{_WORD}{{43,}}",
    "glsa_": rf"{_ALNUM}{{32}}_[a-fA-F0-9]{{8}}",
    "NRAK-": r"[A-Z0-9]{27}",
    "figd_": rf"{_WORD}{{36,}}",
    "PMAK-": r"[a-f0-9]{24}-[a-f0-9]{34}",
    "EZ": rf"[AT]K{_ALNUM}{{54}}(?!{_WORD})",
    "xkeysib-": r"[a-f0-9]{64}-[A-Za-z0-9]{16}",
    "xsmtpsib-": r"[a-f0-9]{64}-[A-Za-z0-9]{16}",
    "shippo_": r"(?:live|test)_[a-fA-F0-9]{40}",
    "rdme_": r"[a-zA-Z0-9]{70}",
    "FLWSECK": r"(?:_TEST|_LIVE)?-(?:[a-z0-9]{32}-X|[a-z0-9]{12,})",
    "FLWPUBK": r"(?:_TEST|_LIVE)?-[a-z0-9]{32}-X",
    "A3-": r"[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})(?:-[A-Z0-9]{5}){3}(?![A-Za-z0-9])",
    "duffel_": rf"(?:test|live)_{_WORD}{{43}}",
    "fio-u-": rf"{_WORD}{{64}}",
    "EAA": rf"[A-Z](?=[A-Za-z]{{0,80}}\d){_ALNUM}{{90,}}",
    "PMAT-": r"[A-Z0-9]{26}",
    "NRII-": rf"{_WORD}{{32}}",
    "phx_": rf"{_ALNUM}{{40,}}",
    "apify_api_": rf"{_ALNUM}{{34,}}",
    "CFPAT-": rf"{_WORD}{{43}}",
    "waka_": r"[0-9a-fA-F-]{36}",
    "tfp_": r"[\w.=-]{59}",
    **{f"sm_{kind}at_": rf"{_ALNUM}{{16,}}" for kind in "aps"},
    **{f"access-{stage}-": r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}" for stage in ("sandbox", "production")},
    **{f"{mode}_": r"[a-f0-9]{35}(?![A-Za-z0-9])" for mode in ("live", "test")},
    "pat-": r"(?:na|eu)\d-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}
"""Maps prefixes to the patterns that follow them. Each match contains a long word that `RUN` matches."""

_DOTTED: Final[dict[str, str]] = {
    "ya29.": r"[\w.-]{20,}",
    "1//0": r"[\w-]{40,}",
    "v1.0-": r"[a-f0-9]{24}-[a-f0-9]{146}",
    "hvs.": rf"{_WORD}{{24,}}",
    "pat": rf"{_ALNUM}{{14}}\.[a-f0-9]{{64}}(?![A-Za-z0-9])",
    **{f"{kind}.": rf"eyJ1{_WORD}{{20,}}\.{_WORD}{{20,}}" for kind in ("sk", "tk")},
    "AQ.Ab8": rf"{_WORD}{{30,}}",
    "t1.9euel": r"[\w.-]{60,}",
    "mlsn.": r"[a-f0-9]{64}",
    "snyk_uat.": r"[a-f0-9]{8}\.eyJ[\w.-]{40,}",
    "hvb.": rf"{_WORD}{{24,}}",
    "dp.": r"(?:pt|st|ct|sa|scim|audit)\.[\w.-]{40,}",
    "dt0c01.": rf"{_ALNUM}{{24}}\.{_ALNUM}{{64}}",
    "dt0s": rf"\d\d\.{_ALNUM}{{8,24}}\.{_ALNUM}{{64}}",
    **{f"{kind}at.": rf"{_WORD}{{22}}\.{_ALNUM}{{24}}\.{_ALNUM}{{20}}" for kind in "ps"},
    "sha256~": rf"{_WORD}{{43}}(?!{_WORD})",
    "sl.": r"(?:u\.)?(?=[\w=-]{0,60}\d)[\w=-]{130,}",
    "xoxe.": r"xox[bp]-\d-[A-Za-z0-9-]{20,}",
    "SG.": rf"{_WORD}{{16,32}}\.{_WORD}{{32,}}",
}
"""Prefixes of secrets in which other characters precede a long word."""

_LOOSE: Final[dict[str, str]] = {
    **{f"fm{kind}": r"_[A-Za-z0-9+/=_,-]{100,}" for kind in ("2", "1r", "1a")},
    "whsec_": r"[A-Za-z0-9+/=]{24,}",
    "ABSK": r"[A-Za-z0-9+/]{109,}",
    "ops_eyJ": r"[A-Za-z0-9+/]{200,}={0,3}",
    "glc_": r"[A-Za-z0-9+/]{32,}={0,3}",
    "sk-let-": r"[A-Za-z0-9+/=]{60,}",
    "bedrock-api-key-": r"[A-Za-z0-9+/=]{100,}",
    "npg_": rf"(?=[A-Za-z]{{0,12}}\d){_ALNUM}{{12,}}",
    "cflt": r"(?=[A-Za-z+/]{0,60}\d)[A-Za-z0-9+/]{60}(?![A-Za-z0-9])",
    "essu_": r"[A-Za-z0-9+/]{40,}={0,2}",
    "sntry": r"[su]_[A-Za-z0-9+/=_-]{40,}",
    "MII": r"[A-Za-z0-9+/]{3}[A-Za-z0-9+/]?IBA[A-Za-z0-9+/]{60,4000}={0,2}",
}
"""Prefixes of base64 secrets that don't necessarily contain a long word."""

_BEFORE_RUNS: Final[tuple[Shape, ...]] = (
    Shape(literal=":AA", pattern=rf"(?<=\d{{8}}):(?P<secret>AA{_WORD}{{30,40}})(?!{_WORD})"),
    Shape(literal="|", pattern=rf"\D?(?P<secret>\d{{15,16}}\|{_WORD}{{27,40}})(?!{_WORD})", before=16),
    Shape(literal=".atlasv1.", pattern=rf"{_ALNUM}{{14}}\.atlasv1\.[\w=-]{{60,70}}", before=14),
)
_ENDING: Final = Shape(literal="_mmk", pattern=rf"{EDGE}{_ALNUM}{{6}}_{_ALNUM}{{29}}_mmk(?!\w)", before=36)

_PLACED: Final[tuple[Shape, ...]] = (
    Shape(literal="Q~", pattern=EDGE + r"[\w~.-]{3}\dQ~[\w~.-]{31,34}(?![\w~-])", before=4),
    Shape(literal="hooks.slack.com/", pattern=r"hooks\.slack\.com/[a-z]{8,9}/(?P<secret>[\w+/]{30,})"),
    Shape(literal="/api/webhooks/", pattern=r"/api/webhooks/\d{16,20}/(?P<secret>[\w-]{60,})"),
    Shape(literal="webhook.office.com/", pattern=r"[a-z.]{18}/webhookb2/(?P<secret>[\w@/-]{60,})"),
    Shape(
        literal="BUNDLE_",
        pattern=r"BUNDLE_[A-Z0-9_]{2,80}[\"']?[ \t]?[:=][ \t]?[\"']?[\w.%-]{1,100}:(?P<secret>[^\s\"'<>{}$;]{6,200})",
    ),
    Shape(literal="sig=", pattern=r"(?<=[?&;])sig=(?P<secret>[\w%+/-]{40,}=?)"),
    Shape(literal="AccountKey=", pattern=r"AccountKey=(?P<secret>[A-Za-z0-9+/]{40,}={0,2})"),
    Shape(literal='"auth": "', pattern=r'"auth": "(?P<secret>[A-Za-z0-9+/]{12,}={0,2})"'),
)
"""Formats whose secret part doesn't start with the literal."""


DUMMY: Final = re.compile(r"([x*0#.])\1{7}|your[_-]?(?:access|api|key|secret|token)|abcdefghijklm", re.IGNORECASE)
"""Matches text that shows a person wrote a dummy in a secret's format instead of the secret."""


def _prefixed(prefix: str, rest: str, *, edge: bool) -> Shape:
    return Shape(literal=prefix, pattern=rf"{EDGE if edge else ''}{re.escape(prefix)}(?:{rest})")


def _any_of(prefixes: Mapping[str, str]) -> tuple[Shape, ...]:
    # Long prefixes are specific enough. Short prefixes also occur at the end of words (disk-, task-).
    return tuple(_prefixed(prefix, rest, edge=len(prefix) < 6) for prefix, rest in prefixes.items())


IN_RUNS: Final = (*_any_of(_PREFIXED), _ENDING)
"""Formats whose literal can only occur where `RUN` matches."""

BEFORE_RUNS: Final = _any_of(_DOTTED) + _BEFORE_RUNS
"""Formats whose literal can only occur up to `REACH` characters before such a match."""

REACH: Final = 48

ANYWHERE: Final = _any_of(_LOOSE) + _PLACED
"""All other formats."""
