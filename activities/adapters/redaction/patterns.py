"""Patterns for the vendors' secret formats and for the locations of credentials in text.

A shape consists of a literal, which is fast to find, and a pattern that is matched at the literal's position. The text
is never searched for the patterns themselves, so a text without secrets requires only one `str.find` call per literal.
To limit backtracking, every pattern is either bounded or a single run of one character class.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

MASK: Final = "[REDACTED]"


def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A secret format."""

    literal: str
    """A string that every secret of this format contains."""
    pattern: re.Pattern[str]
    """The pattern that is matched at the literal. Its `secret` group is redacted, or the whole match if there is no
    such group.
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

_PREFIXED: Final[dict[str, str]] = {
    **dict.fromkeys(("AKIA", "ASIA", "ABIA", "ACCA"), r"(?![A-Z0-9]{9}EXAMPLE)[A-Z2-7]{16}(?![\w/+=])"),
    "eyJ": rf"{_WORD}{{17,4000}}\.(?:eyJ{_WORD}{{7,}}(?:\.{_WORD}*)?|(?:{_WORD}*\.){{3}}{_WORD}{{10,}})",
    # code hosting and packages
    **{f"gh{kind}_": rf"{_ALNUM}{{36,}}" for kind in "pousr"},
    "github_pat_": r"\w{22,}",
    "glpat-": r"[\w.-]{20,}",
    **{f"{kind}-": r"[\w.-]{20,}" for kind in ("gldt", "glrt", "glptt", "glcbt", "gloas", "glsoat", "glagent")},
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
    "hf_": r"(?=[A-Za-z]{0,34}[A-Z])[A-Za-z]{30,}",
    "api_org_": r"[A-Za-z]{30,}",
    "gsk_": rf"{_ALNUM}{{48,}}",
    "xai-": rf"{_ALNUM}{{60,}}",
    "pplx-": rf"{_ALNUM}{{40,}}",
    "r8_": rf"{_ALNUM}{{37,}}",
    "lsv2_": r"(?:pt|sk)_[a-f0-9]{32}_[a-f0-9]{10}",
    "tvly-": r"[\w-]{28,}",
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
    "sbp_": r"[a-f0-9]{40}",
    "pscale_": r"(?:tkn|pw|oauth)_[\w.=-]{32,}",
    "AGE-SECRET-KEY-1": r"[0-9A-Z]{58}",
    # services
    **{f"xox{kind}-": r"[A-Za-z0-9-]{16,}" for kind in "abeoprs"},
    "xapp-": r"\d-[A-Za-z0-9-]{20,}",
    **{f"{kind}_{mode}_": rf"{_ALNUM}{{16,}}" for kind in ("sk", "rk") for mode in ("live", "test")},
    "key-": r"[a-f0-9]{32}(?![A-Za-z0-9])",
    "SK": r"[a-f0-9]{32}(?![A-Za-z0-9])",
    "lin_api_": rf"{_ALNUM}{{32,}}",
    "lin_oauth_": r"[a-f0-9]{32,}",
    "ntn_": rf"{_ALNUM}{{40,}}",
    "secret_": rf"(?=[A-Za-z]{{0,42}}\d){_ALNUM}{{43}}(?!{_WORD})",
    **{f"{kind}_": r"[a-fA-F0-9]{32}" for kind in ("shpat", "shpca", "shppa", "shpss", "shptka")},
    "EAAA": rf"{_WORD}{{60,}}",
    "sq0atp-": rf"{_WORD}{{22,}}",
    "sq0csp-": rf"{_WORD}{{43,}}",
    "glsa_": rf"{_ALNUM}{{32}}_[a-fA-F0-9]{{8}}",
    "NRAK-": r"[A-Z0-9]{27}",
    "figd_": rf"{_WORD}{{36,}}",
    "PMAK-": r"[a-f0-9]{24}-[a-f0-9]{34}",
    "pat-": r"(?:na|eu)\d-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}
"""Maps prefixes to the patterns that follow them. Each match contains a long word that `RUN` matches."""

_LOOSE: Final[dict[str, str]] = {
    "ya29.": r"[\w.-]{20,}",
    "1//0": r"[\w-]{40,}",
    "v1.0-": r"[a-f0-9]{24}-[a-f0-9]{146}",
    "hvs.": rf"{_WORD}{{24,}}",
    "hvb.": rf"{_WORD}{{24,}}",
    "fm2_": r"[A-Za-z0-9+/=_-]{100,}",
    "dp.": r"(?:pt|st|ct|sa|scim|audit)\.[\w.-]{40,}",
    "xoxe.": r"xox[bp]-\d-[A-Za-z0-9-]{20,}",
    "whsec_": r"[A-Za-z0-9+/=]{24,}",
    "SG.": rf"{_WORD}{{16,32}}\.{_WORD}{{32,}}",
    "sntry": r"[su]_[A-Za-z0-9+/=_-]{40,}",
}
"""Prefixes of secrets that have other characters near their start."""

_PLACED: Final[tuple[Shape, ...]] = (
    Shape(literal=":AA", pattern=_regex(rf"(?<=\d{{8}}):(?P<secret>AA{_WORD}{{30,40}})(?!{_WORD})")),
    Shape(literal="Q~", pattern=_regex(EDGE + r"[\w~.-]{3}\dQ~[\w~.-]{31,34}(?![\w~-])"), before=4),
    Shape(literal="hooks.slack.com/", pattern=_regex(r"hooks\.slack\.com/[a-z]{8,9}/(?P<secret>[\w+/]{30,})")),
    Shape(literal="/api/webhooks/", pattern=_regex(r"/api/webhooks/\d{16,20}/(?P<secret>[\w-]{60,})")),
    Shape(literal="webhook.office.com/", pattern=_regex(r"[a-z.]{18}/webhookb2/(?P<secret>[\w@/-]{60,})")),
    Shape(literal="sig=", pattern=_regex(r"(?<=[?&;])sig=(?P<secret>[\w%+/-]{40,}=?)")),
    Shape(literal="AccountKey=", pattern=_regex(r"AccountKey=(?P<secret>[A-Za-z0-9+/]{40,}={0,2})")),
    Shape(literal='"auth": "', pattern=_regex(r'"auth": "(?P<secret>[A-Za-z0-9+/]{12,}={0,2})"')),
)
"""Formats whose secret part doesn't start with the literal."""


def _prefixed(prefix: str, rest: str, *, edge: bool) -> Shape:
    return Shape(literal=prefix, pattern=_regex(rf"{EDGE if edge else ''}{re.escape(prefix)}(?:{rest})"))


def _any_of(prefixes: Mapping[str, str]) -> tuple[Shape, ...]:
    # Long prefixes are specific enough. Short prefixes also occur at the end of words (disk-, task-).
    return tuple(_prefixed(prefix, rest, edge=len(prefix) < 6) for prefix, rest in prefixes.items())


IN_RUNS: Final = _any_of(_PREFIXED)
"""Formats that can only occur where `RUN` matches."""

ANYWHERE: Final = _any_of(_LOOSE) + _PLACED
"""All other formats."""
