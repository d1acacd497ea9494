"""Tell from a server's words what it refuses: what the request contains, or the account, the model or a setting.

Each server has its own words. What names a part of the conversation is about the content, whatever else it says. What
names nothing may be about the content, too.
"""

import re
from collections.abc import Sequence
from typing import Final

_LONGEST_TEXT: Final = 8000
_LONGEST_VAGUE: Final = 300

_PLACE = re.compile(
    r"^\W*(?:body\W+)?(?:messages?|input|contents?|tools|functions|system|prompt)\b(?:[\[./]|$)"
    r"|\b(?:messages|input|contents|tools)(?:\[\d|\.\[?\d)"
    r"|\b(?:images?|image_url|pictures?|pdfs?|documents?|audio|videos?|files?)\b",
    re.IGNORECASE,
)
_PART = re.compile(
    r"\b(?:messages|contents?|tools?|tool_(?:use|result|calls?)(?:_ids?)?|functions?|function_(?:calls?|response))\b"
    r"|\b(?:assistant|user|system|tool) (?:message|turn|role)",
    re.IGNORECASE,
)
_NO_PART = re.compile(
    r"(?:does not|doesn't) support (?:tools|function)|tool[ _-]choice|tool-call-parser|content-type"
    r"|\btools\W{1,2}(?:are|is) (?:specified|provided|set)",
    re.IGNORECASE,
)
"""Words for settings and abilities of a model that contain a word for a part of the conversation."""

_ACCOUNT = re.compile(
    r"api[ _-]?key|\bcredit|billing|good standing|arrearage|unauthori[sz]ed|not authori[sz]ed|access denied"
    r"|(?<!into )\baccounts?\b(?! for)|\borgani[sz]ations?\b|subscription|paid plan"
    r"|\b(?:your|current|free|this) (?:plan|tier)\b"
    r"|trial (?:has |is )?(?:expired|ended|over)|insufficient[ _](?:balance|funds|quota|permission)"
    r"|\bbudget[ _](?:has been )?exceeded|exceeded (?:your |the )?budget|spending limit|terms of (?:service|use)"
    r"|(?:location|country|region|territory)\b[^.]{0,40}\bnot (?:supported|available|allowed)"
    r"|unsupported[ _](?:country|location|region)"
    r"|(?:access|api|auth\w{0,20}|bearer)[ _]token|token (?:is |has )?(?:been )?(?:invalid|expired|revoked)"
    r"|invalid token\b|rate[ -]limit|\bquota|(?:hourly|daily|weekly|monthly|usage) (?:\w{1,20} )?limit"
    r"|密[钥鑰]|欠[费費]|[余餘][额額]|[账賬帳][户號号戶]|套餐|[实實]名|[无無][权權]",
    re.IGNORECASE,
)
_MODEL = re.compile(
    # A name such as `m-3.1` contains a full stop that ends no sentence.
    r"\bmodel\b(?:[^.]|\.(?! )){0,120}?(?:\bnot (?:found|exist|supported|available|enabled|allowed|a valid)"
    r"|doesn't exist|is (?:invalid|unknown|deprecated|retired)|been (?:decommissioned|deprecated|retired|removed)"
    r"|no longer|decommissioned|end of life|shut down)"
    r"|(?:unknown|invalid|unsupported|no such|not a valid|not a chat)[ _]model"
    r"|does(?: not|n't) support (?:tools|function|chat)|on-demand throughput|inference profile"
    r"|provider not (?:provided|found|supported)|only supported in v1/"
    r"|\bno (?:\w+ )?(?:endpoints?|providers?|channels?|deployments?)\b|deployment\b[^.]{0,60}\bnot"
    r"|模型(?:不存在|代码|编码|未找到|已下线)",
    re.IGNORECASE,
)
_SETTING = re.compile(
    r"\bmax(?:imum)?[ _]?(?:\w{1,20}[ _])?tokens|maxoutputtokens|budget_tokens|\btemperature\b|\btop_?[pk]\b"
    r"|\bn(?:um)?_predict\b|reasoning[ _.]?effort|stream_options|(?:presence|frequency)_penalty|logit_bias|logprobs"
    r"|\bstop[ _]sequences?|^\W*(?:stop|seed)\b|service_tier|response_format|tool[ _-]choice|parallel_tool_calls"
    r"|verbosity|\bheaders?\b|anthropic-beta|enable_thinking|thinking[._ ]?(?:config|type|budget|level|mode)"
    r"|\b(?:thinking|reasoning|streaming) (?:mode )?(?:is |are )?not (?:enabled|supported|available|allowed)"
    r"|not support (?:thinking|reasoning|streaming)|\bbody\.[a-z]"
    r"|(?:unknown|unsupported|unrecognized|unexpected)[ _](?:request[ _])?(?:parameter|argument|field|keyword|option)",
    re.IGNORECASE,
)
_BUSY = re.compile(
    r"\b(?:at|over|no) (?:full |max(?:imum)? )?capacity|overloaded|temporarily unavailable"
    r"|(?:server|service|model|system) is (?:currently |too |very )?busy|(?:high|heavy) (?:demand|load|traffic)"
    r"|繁忙|[过過][载載]|[负負][载載][过過]高",
    re.IGNORECASE,
)
_VAGUE = re.compile(
    r"(?:[\W\d_]|(?:unprocessable|unsupported) content|unprocessable|entity|bad|invalid|malformed|requested|requests?"
    r"|errors?|exception|codes?|status|https?|input|prompt|arguments?|param(?:eter)?s?|body|validation|value"
    r"|upstream|provider|returned|returns|return|failed|failure|fail|rejected|client|server|openai|anthropic|litellm"
    r"|api|internal|unknown|unspecified|none|null|reason|given|details?|message|occurred|something|went|wrong"
    r"|could|cannot|can't|not|been|be|processed|process|understood|understand|please|check|and|try|again|your|you"
    r"|contains?|from|with|the|was|an?|is|to|by|or|no|参数|參數|有误|错误|請求|请求|无效|失败|的)*+",
    re.IGNORECASE,
)


def is_of_content(message: str, code: str, params: Sequence[str]) -> bool:
    """Whether a server refused what the request contains, and not its account, its model or one of its settings.

    `params` are the places that the server names in fields of their own.
    """
    if _names_content(message, code, params):
        return True
    told = f"{_plain(message)}\n{code}"
    return not params and not any(pattern.search(told) for pattern in (_ACCOUNT, _MODEL, _SETTING))


def is_vague(message: str, code: str, params: Sequence[str]) -> bool:
    """Whether a server gives no reason, such as in `Bad Request` or an HTML page."""
    if message.lstrip()[:20].lower().startswith(("<html", "<!doctype html")):
        return True
    told = f"{code} {_plain(message)}"
    return not params and len(told) <= _LONGEST_VAGUE and _VAGUE.fullmatch(told) is not None


def is_busy(message: str, code: str, params: Sequence[str]) -> bool:
    """Whether a server refuses a request only for now, because it has too much to do."""
    return _BUSY.search(_plain(message)) is not None and not _names_content(message, code, params)


def _names_content(message: str, code: str, params: Sequence[str]) -> bool:
    message = _plain(message)
    if any(_PLACE.search(text) for text in (*params, message)) or "image_" in code:
        return True
    return not params and _PART.search(_NO_PART.sub(" ", message)) is not None


def _plain(message: str) -> str:
    return message[:_LONGEST_TEXT].replace("’", "'").replace("‑", "-")
