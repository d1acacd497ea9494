"""Long conversations with planted facts, made from a seed, so that nothing can be tuned to their wording.

A fact is one sentence with a value that occurs nowhere else. A person, a tool or the model says it once, in English or
Chinese, between texts without facts: prose, logs and code, with their own numbers and names.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Final, Literal, TypeAlias

By: TypeAlias = Literal["person", "tool", "model"]
Kind: TypeAlias = Literal["decision", "file", "number", "id"]
Language: TypeAlias = Literal["en", "zh"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """A planted fact."""

    by: By
    kind: Kind
    language: Language
    sentence: str
    value: str
    question: str
    """What a model asks to find the fact. It doesn't contain the value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlantedTurn:
    """What is said in one turn."""

    model: str
    tool: str
    person: str = ""
    """What a person says after the turn, if anything."""


_ADJECTIVES: Final = (
    "nightly weekly northern internal archived legacy regional mobile partner draft public shadow seasonal manual"
    " wholesale academic coastal rapid silent primary"
)
_NOUNS: Final = (
    "importer ledger gateway scheduler catalogue invoice-run mailer warehouse dashboard parser thermostat exporter"
    " registry payroll crawler turnstile survey backlog firmware simulator"
)
_WHERE: Final = (
    "夜间 每周 北区 内部 归档 旧版 地区 移动端 合作方 草稿 公开 影子 季节性 人工 批发 校园 沿海 快速 静默 主"
)
_WHAT: Final = (
    "导入器 账本 网关 调度器 目录 开票流程 邮件服务 仓库 看板 解析器 温控器 导出器 登记处 工资系统 爬虫 闸机 问卷 "
    "待办池 固件 模拟器"
)
_SYLLABLES: Final = "ba ce do fi gu ka le mo ni pu ra se to vi zu tar vel mor lin dex"
_PLAIN: Final = (
    "the a of and then some part looks fine here continues with more text about how each piece fits next to another one"
    " nothing special in this place so reading goes on through rest while order stays as before and words follow words"
    " again section after that same idea told twice in other terms for those who missed it earlier still common"
)
_PLAIN_ZH: Final = (
    "这一部分没有什么特别之处，继续往下看。 内容和前面差不多，只是换了一种说法。 顺序保持不变，后面还有很多类似的段落。"
    " 这里只是一般的说明."
)

_SAID: Final[Mapping[tuple[Language, Kind], Sequence[tuple[str, str]]]] = {
    ("en", "decision"): (
        ("We go with {value} for the {subject} rather than {other}.", "What did we choose for the {subject}?"),
        ("The {subject} gets rewritten in {value}; {other} is off the table.", "{subject}: rewritten in what?"),
        ("After weighing both, {value} wins over {other} for the {subject}.", "which option won for the {subject}"),
    ),
    ("en", "file"): (
        ("The retry logic of the {subject} lives in {value}.", "Where is the retry logic of the {subject}?"),
        ("See {value} for everything about the {subject}.", "file about the {subject}"),
        ("I moved what the {subject} needs to {value}.", "Where did the things that the {subject} needs move to?"),
    ),
    ("en", "number"): (
        ("The {subject} handles at most {value} requests per minute.", "most requests per minute for the {subject}"),
        ("Ops set the timeout of the {subject} to {value} ms.", "What is the timeout of the {subject}?"),
        ("It cost us {value} dollars to run the {subject} last year.", "cost of the {subject} last year"),
    ),
    ("en", "id"): (
        ("The ticket for the {subject} is {value}.", "ticket of the {subject}"),
        ("{value} is the account that owns the {subject}.", "Which account owns the {subject}?"),
        ("The {subject} broke with commit {value}.", "commit that broke the {subject}"),
    ),
    ("zh", "decision"): (
        ("{subject}最终定为{value}，不考虑{other}。", "{subject}最终定为什么？"),
        ("大家同意{subject}换成{value}，放弃{other}。", "{subject}换成了什么"),
    ),
    ("zh", "file"): (
        ("{subject}的配置写在{value}里面。", "{subject}的配置写在哪里？"),
        ("有关{subject}的说明请看{value}。", "{subject}的说明在哪个文件"),
    ),
    ("zh", "number"): (
        ("{subject}每分钟最多处理{value}个请求。", "{subject}每分钟最多处理多少请求？"),
        ("去年运行{subject}花了{value}元。", "去年运行{subject}花了多少钱"),
    ),
    ("zh", "id"): (
        ("{subject}对应的工单是{value}。", "{subject}对应的工单是哪个？"),
        ("{subject}归账号{value}所有。", "{subject}归哪个账号所有"),
    ),
}


def planted_facts(seed: int, *, of_each: int = 3) -> tuple[Fact, ...]:
    """Return the facts in random order: `of_each` for each speaker, kind and language."""
    random = Random(seed)
    english = [" ".join(pair) for pair in product(_ADJECTIVES.split(), _NOUNS.split())]
    chinese = ["".join(pair) for pair in product(_WHERE.split(), _WHAT.split())]
    subjects = {"en": random.sample(english, len(english)), "zh": random.sample(chinese, len(chinese))}
    bys: tuple[By, ...] = ("person", "tool", "model")
    kinds: tuple[Kind, ...] = ("decision", "file", "number", "id")
    languages: tuple[Language, ...] = ("en", "zh")
    used: set[str] = set()
    facts = []
    for by, kind, language, _ in product(bys, kinds, languages, range(of_each)):
        said, asked = random.choice(_SAID[language, kind])
        subject, value = subjects[language].pop(), _value(random, kind, used)
        sentence = said.format(subject=subject, value=value, other=_name(random))
        question = asked.format(subject=subject)
        facts.append(Fact(by=by, kind=kind, language=language, sentence=sentence, value=value, question=question))
    random.shuffle(facts)
    return tuple(facts)


def planted_turns(facts: Sequence[Fact], count: int, seed: int) -> tuple[PlantedTurn, ...]:
    """Return `count` turns in which the facts are said once each. The last tenth of the turns has none."""
    random = Random(seed)
    at = sorted(random.choices(range(int(0.9 * count)), k=len(facts)))
    said: list[dict[By, list[str]]] = [{} for _ in range(count)]
    for turn, fact in zip(at, facts, strict=True):
        said[turn].setdefault(fact.by, []).append(fact.sentence)
    return tuple(
        PlantedTurn(
            model=_among(random, _prose(random, 2), each.get("model", ())),
            tool=_among(random, random.choice((_prose, _log, _code))(random, 24), each.get("tool", ()), "\n"),
            person=_among(random, _prose(random, 3), each["person"]) if "person" in each else "",
        )
        for each in said
    )


def _value(random: Random, kind: Kind, used: set[str]) -> str:
    while True:
        match kind:
            case "decision":
                value = _name(random)
            case "file":
                folder = random.choice(("src/", "docs/", "ops/", "")) + random.choice(("", f"{_name(random).lower()}/"))
                value = f"{folder}{_name(random).lower()}.{random.choice(('py', 'toml', 'md', 'go', 'yaml'))}"
            case "number":
                value = str(random.randint(1_000, 99_999))
            case "id":
                value = random.choice(
                    (
                        f"{_name(random)[:3].upper()}-{random.randint(100, 9999)}",
                        f"{random.getrandbits(40):010x}",
                        f"acct_{random.randint(10**6, 10**7)}",
                    )
                )
        if not any(value in other or other in value for other in used):
            used.add(value)
            return value


def _name(random: Random) -> str:
    return "".join(random.choices(_SYLLABLES.split(), k=3)).capitalize()


def _among(random: Random, lines: list[str], planted: Sequence[str], joined: str = " ") -> str:
    for sentence in planted:
        lines.insert(random.randrange(len(lines) + 1), sentence)
    return joined.join(lines)


def _prose(random: Random, lines: int) -> list[str]:
    return [
        random.choice(_PLAIN_ZH.split())
        if random.random() < 0.2
        else " ".join(random.choices(_PLAIN.split(), k=random.randint(8, 16))).capitalize() + "."
        for _ in range(lines)
    ]


def _log(random: Random, lines: int) -> list[str]:
    return [
        f"2026-03-{random.randint(1, 28):02} {random.randint(0, 23):02}:{random.randint(0, 59):02} INFO worker"
        f" {random.randint(1, 9)} handled {random.randint(10, 9999)} rows in {random.randint(1, 900)} ms"
        for _ in range(lines)
    ]


def _code(random: Random, lines: int) -> list[str]:
    words = _PLAIN.split()
    return [
        f"    {random.choice(words)}_{random.choice(words)} = {random.choice(words)}({random.randint(0, 999)})"
        for _ in range(lines)
    ]


def missing(facts: Sequence[Fact], text: str) -> Iterator[Fact]:
    """Yield the facts whose values the text doesn't contain."""
    return (fact for fact in facts if fact.value not in text)
