"""Find the facts about a person that a newer fact replaces.

A fact's claims map each subject to what the fact says about it:

    I prefer tabs over spaces       tab: yes, space: no
    Never use tabs                  tab: no
    Please answer in German         answer in LANGUAGE: german
    The limit is 30 seconds         limit NUMBER second: 30
    Call me Ann                     called: ann
    I moved to Bergen               place: bergen
    Forget that I live in Oslo      place: not oslo

Two facts contradict each other if they claim different things about a subject. The newer fact then replaces the older
one. The rule reads only such plain sentences, in English and Chinese. A sentence that it doesn't understand contradicts
nothing, so that no fact is lost by a mistake of the rule: a model compares these facts later.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from loom.domain.core.lexemes import lexemes_of
from loom.domain.memory.people import PersonFact
from loom.domain.memory.place_names import is_chinese_place, is_proper_name, is_tool_or_role

YES: Final = "yes"
NO: Final = "no"
NOT: Final = "not "
"""What precedes a value that a person has taken back."""


def claims_of(content: str) -> Mapping[str, str]:
    """Return a fact's claims, by subject. Empty if the rule doesn't understand the sentence."""
    written = " ".join(content.replace("\u2019", "'").split()).strip(" .!;。！；")
    sentence = written.casefold()
    if taken_back := _TAKEN_BACK.match(sentence):
        return {subject: _opposite(value) for subject, value in claims_of(written[taken_back.end() :]).items()}
    plain = _LED_IN.sub("", sentence)
    no_more = _NO_MORE.fullmatch(plain)
    if named := _named(f"i {no_more['what'] or no_more['other']}" if no_more else plain, written):
        return {subject: NOT + value for subject, value in named.items()} if no_more else named
    words, is_negated, is_liking = _opened(sentence)
    if (choice := _CHOICE.fullmatch(words)) and not is_negated:
        chosen, other = (_subject(choice[part] or choice[f"{part}_zh"]) for part in ("chosen", "other"))
        return {chosen: YES, other: NO} if chosen and other and chosen != other else {}
    if not (is_negated or is_liking) and (values := _values(words)):
        return values
    subject = _subject(words)
    return {subject: NO if is_negated else YES} if subject else {}


def replaced(facts: Sequence[PersonFact]) -> dict[int, int]:
    """Map each fact of one owner that a newer fact contradicts to the newest one that does.

    A text that somebody has written by hand is replaced only by another such text.
    """
    oldest_first = sorted(facts, key=lambda fact: (fact.created_at, fact.id))
    claims = [(fact, claims_of(fact.content)) for fact in oldest_first]
    return {
        old.id: new.id
        for at, (old, was) in enumerate(claims)
        for new, now in claims[at + 1 :]
        if may_replace(new, old) and any(_contradicts(now.get(subject, value), value) for subject, value in was.items())
    }


def may_replace(new: PersonFact, old: PersonFact) -> bool:
    """Whether the newer of two facts may replace the older one, if they contradict each other."""
    return old.source != "added" or new.source == "added"


def _contradicts(now: str, was: str) -> bool:
    """Whether a subject's newer value excludes the older one. What is taken back is only the value that is named."""
    return now == NOT + was if now.startswith(NOT) else now != was


def _opposite(value: str) -> str:
    return {YES: NO, NO: YES}.get(value, value.removeprefix(NOT) if value.startswith(NOT) else NOT + value)


def _named(sentence: str, written: str) -> dict[str, str]:
    """Return the value of a subject of which a person has only one, such as a name."""
    for subject, pattern in _NAMED:
        if named := pattern.fullmatch(sentence):
            found = named.groupdict()
            value = next(text for name in _VALUES if (text := found.get(name)) is not None)
            is_doubtful = (
                ("proper" in found and not is_proper_name(value, written))
                or (found.get("chinese_place") is not None and not is_chinese_place(value))
                or (subject == "place" and is_tool_or_role(value))
            )
            return {} if is_doubtful else {found.get("attribute", subject).replace(" ", ""): value}
    return {}


def _opened(sentence: str) -> tuple[str, bool, bool]:
    """Return the sentence without the words around its subject, and whether they say no, or only that it is liked."""
    is_negated = is_liking = False
    while found := _OPENING.match(sentence):
        is_negated = is_negated or found["no"] is not None
        is_liking = is_liking or found["like"] is not None
        sentence = sentence[found.end() :]
    return _CLOSING.sub("", sentence), is_negated, is_liking


def _values(words: str) -> dict[str, str]:
    """Return the value of a subject that has only one: a quantity, or the language to answer in."""
    found = [(each["language"], each["number"]) for each in _VALUE.finditer(words)]
    if not found:
        return {}
    subject = _subject(_VALUE.sub(lambda each: f" {'LANGUAGE' if each['language'] else 'NUMBER'} ", words))
    if set(subject.split()) <= _ANSWERING:
        subject = "answer in language"
    return {subject: ", ".join(_SAME_LANGUAGE.get(language, language) or number for language, number in found)}


def _subject(words: str) -> str:
    """Return the telling words of a text, in the form in which two sentences about the same have the same words."""
    return " ".join(word for word in lexemes_of(words) if word not in _FILLERS)


_FILLER_WORDS: Final = "a an the my your our some any to of for with that this it them be is are was"
_FILLERS: Final = frozenset(_FILLER_WORDS.split())
_ANSWERING_WORDS: Final = (
    "language in me answer reply response respond write speak talk message 回答 答我 回复 复我 说话 交流 写 答 说"
)
_ANSWERING: Final = frozenset(_ANSWERING_WORDS.split())
"""Words about answering. Sentences with only these words differ in the language and nothing else."""

_PLAIN: Final = r"(?!(?:an?|the|my|this|that|it)\b)[\w'-]+(?: [\w'-]+){0,2}?"
_SINCE: Final = "(?:,? (?:now|these days|by the way|btw))?"
_WHEN: Final = "(?: (?:last|this) (?:week|month|year|spring|summer|autumn|fall|winter))?"
_ATTRIBUTES: Final = "time ?zone|birthday|age|job|job title|role|employer|company|e-?mail|phone number|address|hometown"
_NAMED: Final = tuple(
    (subject, re.compile(pattern))
    for subject, pattern in (
        (
            "called",
            r"(?:please |just |you can )*call me (?!(?:when|if|at|on|back|later|in|before|after|for)\b)"
            r"(?P<value>[\w'.-]+(?: [\w'.-]+)?)",
        ),
        ("called", r"(?:请|你|可以|就|以后)*(?:叫我|称呼我为?)(?P<value>[^，,\s]{1,12})"),
        ("name", r"my name(?:'s| is) (?P<value>[\w'.-]+(?: [\w'.-]+){0,2})"),
        ("name", r"(?:我叫|我的名字[叫是])(?P<value>[^，,\s]{1,12})"),
        ("pronouns", r"my pronouns are (?P<value>[\w/, ]+)"),
        ("place", rf"i(?: now| recently| just|'ve)* (?:live|reside) in (?P<value>{_PLAIN}){_SINCE}"),
        (
            "place",
            rf"(?:i(?:'ve| have)? )?(?:(?:now|recently|just) )*moved to (?P<proper>{_PLAIN}){_WHEN}{_SINCE}",
        ),
        ("place", rf"i(?:'m| am)(?: now)? (?:based|living|located) in (?P<value>{_PLAIN}){_SINCE}"),
        (
            "place",
            r"我[^，,。住搬]{0,4}(?:(?:住在|定居在?|常驻)(?P<value>[^，,\s了的]{1,10})"
            r"|搬[到去]了?(?P<chinese_place>[^，,\s了的住]{1,10})|搬[到去]了?(?P<lived_in>[^，,\s了的住]{1,10})住)了?",
        ),
        ("employer", rf"i(?: now)? work (?:at|for) (?P<proper>{_PLAIN}){_SINCE}"),
        ("", rf"my (?P<attribute>{_ATTRIBUTES}) is (?P<value>[^,]+?){_SINCE}"),
        ("", r"我的?(?P<attribute>时区|生日|职业|年龄|邮箱|电话|手机号|老家|专业)是(?P<value>[^，,\s]{1,30})"),
    )
)
"""The subjects of which a person has one value, such as names. A `proper` value and a `chinese_place` count only if
they are names, because a person also moves to other things and works for other purposes.
"""
_VALUES: Final = ("value", "proper", "chinese_place", "lived_in")
_TAKEN_BACK: Final = re.compile(
    r"(?:please )?(?:forget|disregard) that (?=i |i'm |we |my |our )|(?:请)?忘(?:记|掉)(?=我)"
)
_NO_MORE: Final = re.compile(r"i (?:no longer (?P<what>.+)|(?:don't|do not) (?P<other>.+) any ?more)")
_LED_IN: Final = re.compile(
    r"^(?:(?:and|but|also|so|oh|ok(?:ay)?|well|hi|hello|hey|please|by the way|btw|fyi|no|nope|actually|correction)\b"
    r"[ ,:!-]*"
    r"|(?:另外|还有|对了|你好|不对|不是|更正)[，,：: ]+)+"
)

_SAME_LANGUAGE: Final = {
    name: names.split()[0]
    for names in (
        "english 英文 英语",
        "chinese mandarin 中文 汉语",
        "german deutsch 德文 德语",
        "french 法文 法语",
        "spanish 西班牙文 西班牙语",
        "italian 意大利语",
        "portuguese 葡萄牙语",
        "russian 俄文 俄语",
        "japanese 日文 日语",
        "korean 韩文 韩语",
        "arabic 阿拉伯语",
        "hindi 印地语",
        "dutch 荷兰语",
        "polish 波兰语",
        "turkish 土耳其语",
    )
    for name in names.split()
}
_UNITS: Final = (
    r"(?:spaces?|lines?|characters?|columns?|words?|sentences?|paragraphs?|seconds?|minutes?|hours?|days?|weeks?|months?"
    r"|ms|percent|people|members?|replicas?|workers?|retries|euros?|dollars?|items?|results?|examples?|pages?"
    r"|(?:bullet )?points?)\b"
)
_MEASURES: Final = "(?:个|秒|分钟|小时|天|周|元|次|人|位|条|行|空格|字|份|倍)"
_VALUE: Final = re.compile(
    rf"(?<![a-z])(?P<language>{'|'.join(_SAME_LANGUAGE)})(?![a-z])"
    rf"|(?<![a-z0-9_.第-])(?P<number>\d+(?:\.\d+)?)(?=[ -]{_UNITS}|\s*%|\s*{_MEASURES})"
)
"""A value that the rest of the sentence has only one of. Other numbers are often names, such as those of tickets."""

_CHOICE: Final = re.compile(
    r"(?P<chosen>.+?),? (?:over|instead of|rather than|not) (?P<other>.+)"
    r"|(?P<chosen_zh>.+?)[，, ]?(?:而不是|代替|不要用?|别用)(?P<other_zh>.+)"
)
_OPENING: Final = re.compile(
    r"(?:(?:and|but|also|so|oh|ok(?:ay)?|well|hi|hello|thanks|please|by the way|btw|fyi|note that|remember(?: that)?"
    r"|in (?:general|future|the future)|from now on|actually|correction|decision|preference)\b[ ,:!-]*"
    r"|(?:no|nope|wrong)[,:!;-]+ *"
    r"|(?P<no>(?:(?:i|we)(?: really| also)? )?(?:never|don't(?: ever)?|do not(?: ever)?|no longer|won't)"
    r"(?: (?:like|love|want|prefer|favou?r)(?: to)?)?\b *|(?:i|we) (?:really )?(?:hate|dislike)\b *|stop\b *"
    r"|(?:我|我们)?(?:再也)?(?:不喜欢|讨厌|不爱|不想要?|不再)|(?:请|麻烦|以后|今后|你)*"
    r"(?:永远不要|千万不要|绝不要|不要再?|别再?|别总|不用))"
    r"|(?P<like>(?:i|we)(?: (?:really|also|usually|generally|still|much|do))* (?:like|love)(?: to)?\b *"
    r"|(?:我|我们)(?:个人|一般|通常|平时|还是|更|比较|最|很|一直|总是)*(?:喜欢|爱|偏爱))"
    r"|(?:i|we)(?: (?:really|also|usually|generally|always|strongly|still|much|do|would)|'d)*"
    r" (?:prefer|favou?r|want)(?: you)?(?: to)?\b *"
    r"|(?:i|we)(?:'ve| have)? (?:decided|agreed|chosen|settled)(?: on| to| that)?\b *|(?:i|we) (?:now )?use\b *"
    r"|we(?:'re| are) going with\b *|let(?:'s| us) (?:go with|stick (?:with|to)|settle on)?\b *"
    r"|(?:i|we|you)? ?(?:always|should|must)\b *|(?:use|using|have|get|go with)\b *"
    r"|(?:另外|还有|对了|请?记住|注意|不对|错了|更正)[，,：: ]*"
    r"|(?:我|我们|咱们)(?:已经|最终|最后)?(?:决定|定了|选定|商定|说好)[，,]?|(?:我|我们)(?:个人|一般|通常|平时|还是|更|比较)*"
    r"(?:偏好|习惯|希望你?|想让你|想要)|(?:请|麻烦|以后|今后|从(?:现在|今)(?:开始|起|以后)[，,]?|都|就|一律|总是|永远|始终|每次都)"
    r"|(?:使用|选用|改用|用|选)(?=[^文语]))"
)
_CLOSING: Final = re.compile(
    r",? (?:any ?more|any longer|from now on|in (?:the )?future|please|at all|now|again|instead|always)$|[了吧]$"
)
"""What may stand behind the subject."""
