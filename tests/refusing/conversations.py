"""A conversation from a seed: what the model says turn by turn, and what its provider refuses from which request on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from loom.testing.model_replies import Api, Reply, ToolUse
from tests.refusing.outside import CONTENTS, HALVES, ODD_SCHEMAS, ODD_TEXTS, SOUND
from tests.refusing.rules import SCHEMAS, SOMETIMES, Rule
from tests.refusing.words import UNHELPFUL, Words

FINAL: Final = "finished"
_PAIRS: Final = (
    ({"state that was lost"}, {"an unknown field"}),  # one wants back what the other refuses
    ({"a name that no tool has"}, {rule.name for rule in SCHEMAS}),  # one wants the tools that the others refuse
)
_EXCLUSIVE: Final = (*_PAIRS, *((other, one) for one, other in _PAIRS))


@dataclass(frozen=True, kw_only=True)
class Enabled:
    """A rule of this conversation's provider."""

    rule: Rule
    since: int
    """The number of the first request for which it holds, from 0."""
    words: Words


@dataclass(frozen=True, kw_only=True)
class Said:
    """A reply of the model."""

    reply: Reply
    kind: str
    runs: tuple[str, ...] = ()
    """The keys of the calls that run exactly once."""
    may_run: tuple[str, ...] = ()
    """The keys of the calls that run at most once: their names are odd."""
    reasoning: str = ""


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """A conversation and its provider."""

    name: str
    """The name of its model, by which the server knows it."""
    api: Api
    agent: str
    enabled: tuple[Enabled, ...]
    said: tuple[Said, ...]
    room: int
    """How many bytes a conversation may grow, where its length is limited."""

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of its rules."""
        return tuple(each.rule.name for each in self.enabled)


def conversation(seed: str, first: Rule) -> Conversation:
    """The conversation of this seed, whose provider has this rule, and perhaps others."""
    chance = Random(seed)
    api: Api = chance.choice(sorted(first.apis))
    rules = _rules(chance, api, first)
    provoking = [chance.choice(rule.provoked_by) for rule in rules]
    others = [chance.choice(KINDS) for _ in range(chance.randint(0, 2))]
    kinds = [kind for kind in (*provoking, *others) if kind != "odd tools"]
    chance.shuffle(kinds)
    kinds = [*kinds, "a plain call"] if len(kinds) < 2 or chance.random() < 0.5 else kinds
    is_odd = "odd tools" in provoking or chance.random() < 0.1
    said = tuple(_said(chance, kind, f"{seed}/{turn}", is_odd) for turn, kind in enumerate(kinds))
    last = Said(reply=Reply(text=FINAL), kind="text")
    return Conversation(
        name=f"m-{seed.replace('/', '-')}",
        api=api,
        agent="odd" if is_odd else "sound",
        enabled=tuple(_enabled(chance, rule, len(said)) for rule in rules),
        said=(*said, last),
        room=chance.randint(8_000, 30_000),
    )


def _rules(chance: Random, api: Api, first: Rule) -> list[Rule]:
    """One to four rules."""
    chosen = {first.name: first}
    for _ in range(chance.choices((0, 1, 2, 3), (5, 3, 1, 1))[0]):
        rule = chance.choice([rule for rule in SOMETIMES if api in rule.apis])
        if not any(rule.name in one and other & set(chosen) for one, other in _EXCLUSIVE):
            chosen[rule.name] = rule
    rules = list(chosen.values())
    chance.shuffle(rules)
    return rules


def _enabled(chance: Random, rule: Rule, turns: int) -> Enabled:
    soonest = 0 if rule.from_the_start else 1
    since = soonest if chance.random() < 0.7 else chance.randint(soonest, turns)
    words = rule.words if chance.random() < 0.7 else UNHELPFUL
    return Enabled(rule=rule, since=since, words=chance.choice(words))


def _said(chance: Random, kind: str, key: str, is_odd: bool) -> Said:
    make = _REPLIES.get(kind) or (lambda chance, key: _calls(_use(chance, key, kind)))
    said = replace(make(chance, key), kind=kind)
    return _with_odd_tool(chance, said, key) if is_odd and chance.random() < 0.5 else said


def _with_odd_tool(chance: Random, said: Said, key: str) -> Said:
    """The same reply, and a call of a tool that the client may have had to leave out."""
    odd = ToolUse(chance.choice(sorted(ODD_SCHEMAS)), {"key": f"{key}/odd", "kind": "text"})
    reply = Reply(text=said.reply.text, calls=(*said.reply.calls, odd))
    return replace(said, reply=reply, may_run=(*said.may_run, f"{key}/odd"))


def _use(chance: Random, key: str, kind: str = "text", **more: object) -> ToolUse:
    return ToolUse(chance.choice(SOUND), {"key": key, "kind": kind, **more})


def _calls(*uses: ToolUse, text: str = "", reasoning: str = "") -> Said:
    keys = tuple(str(use.arguments["key"]) for use in uses if isinstance(use.arguments, Mapping))
    return Said(reply=Reply(text=text, calls=uses), kind="", runs=keys, reasoning=reasoning)


def _misnamed(name: Callable[[Random, str], str]) -> Callable[[Random, str], Said]:
    def reply(chance: Random, key: str) -> Said:
        use = _use(chance, key)
        return Said(reply=Reply(calls=(ToolUse(name(chance, use.name), use.arguments),)), kind="", may_run=(key,))

    return reply


def _with_id(identifier: Callable[[Random], str]) -> Callable[[Random, str], Said]:
    def reply(chance: Random, key: str) -> Said:
        use = _use(chance, key)
        return _calls(ToolUse(use.name, use.arguments, identifier(chance)))

    return reply


def _twice_the_id(chance: Random, key: str) -> Said:
    uses = [_use(chance, f"{key}/{n}") for n in range(2)]
    return _calls(*(ToolUse(use.name, use.arguments, "call_7") for use in uses))


def _several(kind: str, number: int) -> Callable[[Random, str], Said]:
    return lambda chance, key: _calls(*(_use(chance, f"{key}/{n}", kind) for n in range(number)))


def _odd_argument(texts: tuple[str, ...]) -> Callable[[Random, str], Said]:
    """An argument that a tool does not know, or not in this form: Loom may refuse it."""

    def reply(chance: Random, key: str) -> Said:
        use = _use(chance, key, f"text{chance.choice(texts)}")
        return Said(reply=Reply(calls=(use,)), kind="", may_run=(key,))

    return reply


_REPLIES: Final[Mapping[str, Callable[[Random, str], Said]]] = {
    "a plain call": lambda chance, key: _calls(_use(chance, key), text=chance.choice(["", "I look.", "Ich schaue. "])),
    "several calls": _several("text", 3),
    "long texts": _several("a long text", 3),
    "a name with a mark": _misnamed(
        lambda chance, name: name + chance.choice(["<|channel|>commentary", "<|call|>", ":0", "()", "\n"])
    ),
    "a name with a prefix": _misnamed(
        lambda chance, name: chance.choice(["functions.", "default_api:", "tools/"]) + name
    ),
    "a name with a space": _misnamed(lambda _, name: f" {name} "),
    "a name of another script": _misnamed(lambda _, name: f"{name}_查看"),
    "an empty name": _misnamed(lambda _chance, _name: ""),
    "a long name": _misnamed(lambda chance, name: (name + "_now") * chance.choice([12, 30])),
    "a name of no tool": _misnamed(lambda chance, _: chance.choice(["nothing", "shell", "mcp__outside__observe"])),
    "an odd id": _with_id(
        lambda chance: chance.choice(["functions.observe:0", "call 1", "call/é", "aufruf-ä|fc_1", "#0"])
    ),
    "an empty id": _with_id(lambda _: ""),
    "a long id": _with_id(lambda chance: "call_" + chance.randbytes(chance.choice([20, 40, 150])).hex()),
    "twice the id": _twice_the_id,
    "the same id again": _with_id(lambda _: "call_0"),
    "blank text": lambda chance, key: _calls(_use(chance, key), text=chance.choice([" ", "\n\n", "\t"])),
    "reasoning": lambda chance, key: _calls(_use(chance, key), reasoning="I should look first."),
    "odd characters in words": lambda chance, key: _calls(_use(chance, key), text=chance.choice(ODD_TEXTS)),
    "NUL as an argument": _odd_argument(("\0", "\x1b")),
    "half a character as an argument": _odd_argument(HALVES),
    "half a character in words": lambda chance, key: _calls(_use(chance, key), text=f"I say {chance.choice(HALVES)}"),
}
"""How the model speaks. Any other kind is a call whose result is of this kind."""

KINDS: Final = (*_REPLIES, *CONTENTS, "failing")
"""All kinds of turns."""
