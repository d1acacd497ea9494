"""Recognize that a server refused a conversation because it is too long, and read the limit that the server names.

Each server says this in its own words, and changes them. The rule is therefore about kinds of words. A sentence is
about the conversation's length if it names the context window, the prompt or tokens, and contains a word for "too
much". It isn't if it is about a rate or a quota, an image or a file, a single field, or the setting of the reply's
length.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

_LONGEST_HEAD: Final = 6000
_LONGEST_TAIL: Final = 2000
"""Servers echo requests in their messages. What they say themselves is at the start or at the end."""

# The patterns are matched with a sentence in lower case. ASCII rules, so that a word also ends before Chinese letters.
_WINDOW = re.compile(
    r"context (?:window|length|size|limit|budget|capacity|len\b)|\b(?:max|maximum|model|available) context"
    r"|context (?:is )?(?:exceed|overflow|full)|exceeds? context|\bn ctx\b|model token limit"
    r"|max(?:imum)? model len|(?:max(?:imum)?|supported) seq(?:uence)? len|session len|model max(?:imum)? len|上下文",
    re.ASCII,
)
_PROMPT = re.compile(
    r"\b(?:prompts?|inputs?|conversation|messages?|history|request|query|sequence|body)\b"
    r"|输入|輸入|提示[词詞]|请求|請求|消息|訊息|对话|對話|文本|内容",
    re.ASCII,
)
_TOKENS = re.compile(r"\btokens?\b", re.ASCII)
_MUCH = (
    r"too (?:long|large|big|many|much)|\bexceed|overflow|\b(?:longer|larger|greater|bigger|more) than"
    r"|(?:less than|up to) [\d,]{4}|\bover (?:the|its|max)|above the|surpass|cannot fit|not fit|should be \["
    r"|must be (?:<|under|below)|\d > (?:max )?\d|reduce the (?:length|size) of|shorten|limit reached|limit is \d"
    r"|but the \w+ (?:limit|maximum)|maximum (?:input|prompt|request)"
    r"|[过過超太][长長]|超[出过過限]|[大高多][于於]|[过過]大|上限"
)
_TOO_MUCH = re.compile(_MUCH, re.ASCII)
_OF_WINDOW = re.compile(rf"{_MUCH}|\bmax\b|maximum|\bonly\b|less than|at most|but the|beyond", re.ASCII)
"""Words that say of a context window that something doesn't fit into it."""

_RATE_OR_OUTAGE = re.compile(
    r"rate[ -]?limit|(?:per[ -]|/ ?)(?:min|sec|hour|day|week|month)|\b[rt]p[mds]\b|quota|throttl|concurren"
    r"|\b(?:hourly|daily|weekly|monthly|today|tomorrow)\b|\d[ -](?:hour|day)\b|in the (?:last|past|next) \d"
    r"|too many requests|(?:at|over|no) capacity|retries|attempts|redirects|connections|queue|waiting"
    r"|out of memory|billing|credits?\b|balance|usage limit|spend|deadline|time[ds]? ?out|overloaded"
    r"|exceed(?:s|ed|ing)? (?:\w{1,20} ){0,2}time\b|time (?:limit|budget)|(?:took|taking) too long"
    r"|please wait|try again (?:in|later)"
    r"|[频頻速]率|限流|[并並][发發]|余额|餘額|配额|配額|[额額]度|每分[钟鐘]|稍[后後]|次[数數]"
    r"|[今每明当當][日天]|用量|[请請]求[数數](?![据據])",
    re.ASCII,
)
"""Words for what a wait, or a payment, changes: a rate, a quota, or a server that is slow or overloaded."""
_MEDIA = re.compile(
    r"\b(?:images?|pictures?|photos?|pixels?|dimensions?|resolution|pdfs?|pages?|documents?|audio|videos?|media|files?"
    r"|attachments?|base64|frames?)\b|[图圖]片|[图圖]像|像素|文件|檔案|[视視][频頻]|音[频頻]",
    re.ASCII,
)
# Pydantic calls any value an input, including the value of a setting: "Input should be less than 2".
_FIELD = re.compile(
    r"\b(?:names?|descriptions?|tools?|functions?|schema|enums?|propert(?:y|ies)|strings?|arrays?|lists?|items?|header"
    r"|cookie|metadata|identifier|ids?|ur[il]s?|stop|seed|temperature|top [kp]|logit|batch|bytes?|[kmg]i?b|megabytes?"
    r"|policy|safety|flagged|depth|recursion|api keys?|jwt|access token|auth\w*|input should be|ensure this value)\b"
    r"|\d[kmg]i?b\b|名[称稱]|描述|字段|工具|函[数數]|字[节節]|密[钥鑰]",
    re.ASCII,
)
_OUTPUT = re.compile(
    r"\b(?:max|maximum|min|minimum) (?:(?:output|completion|new|generated|response|gen) )?tokens?\b"
    r"|\b(?:output|completion|generated|response|thinking|budget|reasoning|stop) (?:tokens?|limit|length)"
    r"|\bmaximum output|\bmax output|num predict|n predict|[输輸]出|生成|[补補]全",
    re.ASCII,
)
_NOTHING_LEFT = re.compile(r"tokens must be (?:at least|greater than) \d, got -\d", re.ASCII)
"""Sent by servers that subtract the prompt from the context window, and find no room for a reply."""
_COUNTED = re.compile(r"\d tokens?\b|\b(?:input|prompt|total|of|many) tokens?\b|tokens? (?:count|limit)", re.ASCII)
"""The length of a single field is never counted in tokens."""

_INPUT = re.compile(
    r"\b(?:prompts?|inputs?|messages?|conversation)\b|(?<!max )tokens in (?:the |your )?request|[输輸]入|提示", re.ASCII
)
_LONG_INPUT = re.compile(
    r"\b(?:prompts?|inputs?|messages?|conversation|history)(?: (?:tokens?|length|size|text|content|is|are|was|were))*"
    r" too (?:long|large|big)\b|(?:[输輸]入|提示[词詞]?|[对對][话話])\S{0,8}[过過超太][长長]",
    re.ASCII,
)

_NUMBER: Final = r"(?<![a-z0-9.,])(\d{1,3}(?:,\d{3}(?!\d)){1,2}|\d{2,9})(?![a-z0-9]|[.,]\d)"
_GAP: Final = r"(?:(?! by |exceed|[<>])[^\d.]){0,40}?[ (\[:=\u3000-\uffef]"
_LIMITS = tuple(
    re.compile(pattern + _NUMBER)
    for pattern in (
        rf"(?:context (?:length|size|window|limit)|\bn ctx|model token limit|model len(?:gth)?|上下文\S{{0,12}}){_GAP}",
        rf"\bmax(?:imum)?\b{_GAP}",
        r"range of input length should be \[\d+, ?",
        r"(?:less than|at most|cannot exceed|must be <=?|no more than|up to|不能超过|不超过) (?:or equal to )?",
        # The error code of MiniMax stands in the same place as other servers' limits.
        rf"(?:limit|上限|限制|最大\S{{0,12}})(?! \(2013\)){_GAP}",
        rf"(?:longer|larger|greater|more) than{_GAP}",
    )
)
_LIMIT_FIRST = re.compile(_NUMBER + r" (?:tokens? )?(?:maximum|max\b|limit)(?! (?:new|output|tokens))")
_OVER = re.compile(_NUMBER + r"(?: tokens?)? > (?:max )?" + _NUMBER)
_SUM_OVER = re.compile(_NUMBER + r" \+ " + _NUMBER + r" > " + _NUMBER)
_OVER_REST = re.compile(_NUMBER + r" > " + _NUMBER + r" - " + _NUMBER)
_UNIT: Final = r" ?(?:bytes?|[kmg]i?b|characters?|chars?|pixels?|images?|items?|ms|s|seconds?|字[节節]|字符)(?![a-z])"
_AMOUNT = re.compile(rf"(?P<by>\bby )?{_NUMBER}(?P<unit>{_UNIT})?")
_OF_TOKENS = re.compile(rf"{_NUMBER} ?(?:\w+ ){{0,2}}tokens?\b|\btokens? (?:count )?(?:of )?\(?{_NUMBER}", re.ASCII)
_TOO_LARGE = re.compile(r"\btoo (?:large|big|long)\b")
_USED = re.compile(r"\bused\b")
_IN_BYTES = re.compile(r"message size|body size|payload size|\bbytes?\b|\bcharacters?\b|字节|字節|字符")

_LEAST: Final = 16
_MOST: Final = 100_000_000
"""A context window of another size is another kind of number, such as an id or a number of bytes."""

_LIMIT_FIELDS: Final = (
    *("n_ctx", "max_context_length", "context_length", "context_window", "context_size", "max_model_len"),
    *("max_input_tokens", "max_prompt_tokens", "token_limit", "limit"),
)
_TOKEN_FIELDS: Final = (
    *("n_prompt_tokens", "prompt_tokens", "input_tokens", "num_tokens", "requested_tokens", "token_count", "tokens"),
)


def is_too_long(text: str, status: int) -> bool:
    """Whether a server's message, together with its codes, says that the conversation is too long for the model.

    An error with status 429, or without a status of 4xx, is usually a rate limit or an outage. It counts only if its
    words can't mean anything else.
    """
    sentences = _sentences(text)
    if status == 413:
        return not any(_MEDIA.search(sentence) for sentence in sentences)
    lasting = [sentence for sentence in sentences if not _RATE_OR_OUTAGE.search(sentence)]
    if any(_is_about_window(sentence) for sentence in lasting):
        return True
    whole = ". ".join(sentences)
    is_refusal = 400 <= status < 500 and status != 429
    if not is_refusal and any(_LONG_INPUT.search(sentence) and not _is_about_other(sentence) for sentence in lasting):
        return True
    if status == 429 or len(lasting) < len(sentences):
        return _is_larger_than_the_rate(whole)
    if not is_refusal and len(_numbers_of(whole)) < 2:
        return False
    subject = _PROMPT if is_refusal else _INPUT
    return any(_is_about_length(sentence, subject) for sentence in sentences) or _counts_too_much(whole)


def _is_larger_than_the_rate(text: str) -> bool:
    """Whether a single request needs more tokens than a rate limit allows per minute. No wait helps such a request."""
    return _TOO_LARGE.search(text) is not None and _USED.search(text) is None and len(_numbers_of(text)) == 2


def _is_about_window(sentence: str) -> bool:
    if _NOTHING_LEFT.search(sentence):
        return True
    is_named = _WINDOW.search(sentence) is not None and _OF_WINDOW.search(sentence) is not None
    return is_named and not _is_about_media(sentence)


def _is_about_media(sentence: str) -> bool:
    return _MEDIA.search(sentence) is not None and "image and text" not in sentence


def _is_about_other(sentence: str) -> bool:
    """Whether a sentence is about the length of an image, a file or a single field."""
    return _is_about_media(sentence) or (_FIELD.search(sentence) is not None and not _COUNTED.search(sentence))


def _is_about_length(sentence: str, subject: re.Pattern[str]) -> bool:
    if not _TOO_MUCH.search(sentence) or _is_about_other(sentence):
        return False
    if _OUTPUT.search(sentence) and not _INPUT.search(sentence):
        return False
    return bool(subject.search(sentence) or _TOKENS.search(sentence))


def _counts_too_much(text: str) -> bool:
    """Whether a message without a word for "too much" counts more tokens in the prompt than it allows."""
    is_other = any(pattern.search(text) for pattern in (_MEDIA, _FIELD, _OUTPUT))
    is_of_prompt = _PROMPT.search(text) is not None and _TOKENS.search(text) is not None
    return is_of_prompt and not is_other and len(_numbers_of(text)) == 2


def context_numbers(text: str, fields: Sequence[Mapping[Any, Any]] = ()) -> dict[str, int]:
    """Return the `tokens` that were sent and the `limit` of the model, as far as a server's message and the fields of
    its error name them.

    Numbers that can't be a length in tokens are left out, and so are two numbers that contradict the error because the
    limit is the larger one.
    """
    named = _named(fields)
    if len(named) == 2:
        return named if named["tokens"] >= named["limit"] else {}
    read = _numbers_of(". ".join(_sentences(text)))
    together = {**read, **named}
    return together if together.get("tokens", _MOST) >= together.get("limit", 0) else named


def _named(fields: Sequence[Mapping[Any, Any]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for kind, names in (("tokens", _TOKEN_FIELDS), ("limit", _LIMIT_FIELDS)):
        values = (part.get(name) for part in fields for name in names)
        number = next((value for value in values if type(value) is int and _LEAST <= value <= _MOST), None)
        found |= {} if number is None else {kind: number}
    return found


def _numbers_of(text: str) -> dict[str, int]:
    if _IN_BYTES.search(text) and not _TOKENS.search(text):
        return {}
    if (three := _SUM_OVER.search(text)) is not None:
        return _pair(_integer(three[1]) + _integer(three[2]), _integer(three[3]))
    if (three := _OVER_REST.search(text)) is not None:
        return _pair(_integer(three[1]) + _integer(three[3]), _integer(three[2]))
    if (two := _OVER.search(text)) is not None:
        return _pair(_integer(two[1]), _integer(two[2]))
    amounts = list(_amounts(text))
    limits = [limit for limit in _limits(text) if limit in amounts]
    if not limits:
        return _without_limit(text, amounts)
    limit = next((limit for limit in limits if max(amounts) > limit), limits[0])
    if over := [number for number in amounts if number > limit]:
        return {"tokens": max(over), "limit": limit}
    below = [_integer(match[1] or match[2]) for match in _OF_TOKENS.finditer(text)]
    below = [number for number in below if _LEAST <= number < limit]
    if sum(below) >= limit:
        return {"tokens": sum(below), "limit": limit}
    return {} if below else {"limit": limit}


def _without_limit(text: str, amounts: Sequence[int]) -> dict[str, int]:
    if len(set(amounts)) == 2 and _TOKENS.search(text):
        return {"tokens": max(amounts), "limit": min(amounts)}
    said = _OF_TOKENS.search(text)
    tokens = _integer(said[1] or said[2]) if said else 0
    return {"tokens": tokens} if tokens in amounts else {}


def _pair(tokens: int, limit: int) -> dict[str, int]:
    return {"tokens": tokens, "limit": limit} if _LEAST <= limit <= tokens <= _MOST else {}


def _limits(text: str) -> Iterator[int]:
    first, *others = _LIMITS
    for pattern in (first, _LIMIT_FIRST, *others):
        if match := pattern.search(text):
            yield _integer(match[1])


def _amounts(text: str) -> Iterator[int]:
    for match in _AMOUNT.finditer(text):
        number = _integer(match[2])
        if not match["by"] and not match["unit"] and _LEAST <= number <= _MOST:
            yield number


def _integer(text: str) -> int:
    return int(re.sub(r"\D", "", text))


def _sentences(text: str) -> list[str]:
    """Return the sentences in lower case. Words of identifiers are separated, as in `context_length_exceeded`."""
    if len(text) > _LONGEST_HEAD + _LONGEST_TAIL:
        text = f"{text[:_LONGEST_HEAD]} \n {text[-_LONGEST_TAIL:]}"
    text = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower()
    text = re.sub(r"(?<=\d)_(?=\d)", ",", text)
    text = re.sub(r"[_`'\"*]|(?<=[a-z])-", " ", text.replace("'s ", " ").replace("’s ", " "))
    parts = re.split(r"[。；！？]|[.;!?](?=\s|$)|\n", text)
    return [" ".join(part.split()) for part in parts if part.strip()]
