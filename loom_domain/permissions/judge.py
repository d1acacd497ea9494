"""Decide whether a tool call may run, and name the rule that decided.

Rules map `tool` or `tool(pattern)` to allow, ask or deny. They are evaluated in this order: matching deny rules, scoped
ask rules, the mode, scoped allow rules, the tool's bare rule, an explicit `default`, the tool's declared verdict, and
the built-in default. If none of these decides, the call is denied. A call that would destroy work needs approval even
if a rule allows it (see `guards`). A call also needs approval if a part that can't be parsed might match a deny or ask
rule.

Patterns are matched against `Subject`s, such as the commands in a shell line or a file tool's path. The caller prepares
the subjects, because parsing a shell line and reading the file system are not pure. A deny or ask rule applies if it
matches at least one subject. Allow rules must together cover all subjects. A narrower rule does not take precedence
over a wider one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Final

from loom.domain.core.messages import JsonObject
from loom.domain.core.tool_calls import STRICTNESS, Verdict
from loom.domain.core.tool_names import SAMPLING
from loom.domain.permissions import guards
from loom.domain.permissions.rules import (
    DEFAULT,
    Kind,
    Rule,
    covers,
    guards_too,
    has_value,
    is_exact,
    kind_of,
    may_become,
    may_match,
    may_reach,
    names,
    parse_rule,
    parse_rules,
    touches,
)
from loom.domain.permissions.subjects import WRITING_REDIRECTS, Place, Subject, Touched

BUILT_IN: Final[Mapping[str, Verdict]] = {
    **dict.fromkeys(("read_file", "list_dir", "glob", "grep", "todo", "done", "ask_user"), Verdict.ALLOW),
    "delegate_task": Verdict.ALLOW,
    "create_plan": Verdict.ALLOW,
    SAMPLING: Verdict.ASK,
    **dict.fromkeys(
        ("write_file", "edit_file", "delete_file", "git_commit", "bash", "python", "http_fetch"), Verdict.ASK
    ),
}
GUARD: Final = "guard: "
"""The prefix of `rule` in a judgment that is based on a guard."""

_NOTHING: Final[JsonObject] = {}
_NOWHERE: Final = Place()


class Mode(StrEnum):
    """The permission mode. It takes precedence over allow rules, but not over scoped ask and deny rules."""

    DEFAULT = "default"
    READ_ONLY = "read-only"
    ACCEPT_EDITS = "accept-edits"
    BYPASS = "bypass"


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """The verdict and its origin."""

    verdict: Verdict
    rule: str
    reason: str
    can_be_granted: bool = True
    """Whether a grant for the rest of the run would cover the same call if it is made again."""
    whose: str = ""
    """The agent whose rules decided, if several agents are involved."""
    is_guarded: bool = False
    """Whether a guard decided, and not a rule."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """The call to judge."""

    tool: str
    subjects: Sequence[Subject]
    arguments: JsonObject
    place: Place


def judge(
    tool: str,
    subjects: Sequence[Subject],
    rules: Mapping[str, str],
    *,
    arguments: JsonObject = _NOTHING,
    mode: Mode = Mode.DEFAULT,
    reads: bool = False,
    declared: Verdict | None = None,
    grants: Sequence[str] = (),
    place: Place = _NOWHERE,
) -> Judgement:
    """Judge one call of `tool` that touches `subjects`.

    `reads` means that the call only reads. `declared` is the verdict that the tool was registered with. `grants` are
    the allow rules that a person granted for the run. Grants override ask rules and bare rules, but never a deny rule
    or the mode.
    """
    call = _Call(tool=tool, subjects=subjects, arguments=arguments, place=place)
    own = parse_rules(rules) if rules else ()
    given = parse_rules(dict.fromkeys(grants, Verdict.ALLOW)) if grants else ()
    scoped = [rule for rule in own if rule.pattern is not None]
    bare = _bare(own, tool)

    if denied := _first(call, scoped, Verdict.DENY, subjects) or (
        bare if bare and bare.verdict is Verdict.DENY else None
    ):
        return Judgement(verdict=Verdict.DENY, rule=denied.text, reason=f"denied by the rule {denied.text}")
    # Only a grant for this exact call counts. A grant for a whole program must not override another rule's ask.
    exact = [rule for rule in given if is_exact(rule)]
    open_ones = [subject for subject in subjects if _cover(call, (), exact, subject) is None]
    if all(subject.is_possible for subject in open_ones):
        open_ones = []
    if asked := _first(call, scoped, Verdict.ASK, open_ones):
        return _asked(asked, can_be_granted=not has_value(asked, tool, arguments))
    judged = _by_mode(tool, mode, reads=reads) or _by_allow(call, scoped, given)
    if judged is None:
        judged = _by_bare(_bare(given, tool) or bare) or _by_default(tool, rules, declared)
        judged = _explained(call, judged, scoped)
    if judged.verdict is Verdict.DENY:
        return judged
    if guarded := _guarded(call, scoped, exact, mode):
        return guarded
    # The bypass mode covers this. The accept-edits mode does not override a deny.
    if mode is Mode.BYPASS:
        return judged
    return _unless_guarded_text(call, _unless_hidden(call, judged, scoped, open_ones))


def matching(
    tool: str,
    subjects: Sequence[Subject],
    rules: Mapping[str, str],
    *,
    arguments: JsonObject = _NOTHING,
    place: Place = _NOWHERE,
) -> tuple[Rule, ...]:
    """Return every rule that applies to the call, in the order of the mapping."""
    call = _Call(tool=tool, subjects=subjects, arguments=arguments, place=place)
    return tuple(rule for rule in parse_rules(rules) if _concerns(call, rule))


def _asked(rule: Rule, *, can_be_granted: bool) -> Judgement:
    return Judgement(
        verdict=Verdict.ASK,
        rule=rule.text,
        reason=f"the rule {rule.text} requires a person's approval",
        can_be_granted=can_be_granted,
    )


def _concerns(call: _Call, rule: Rule) -> bool:
    if rule.pattern is None:
        return rule.text == DEFAULT or names(rule, call.tool)
    if rule.verdict is Verdict.ALLOW:
        return any(_cover(call, (rule,), (), subject) is not None for subject in call.subjects)
    return _first(call, (rule,), rule.verdict, call.subjects) is not None


def _bare(rules: Sequence[Rule], tool: str) -> Rule | None:
    """Return the strictest rule that names the tool without a pattern."""
    found = [rule for rule in rules if rule.pattern is None and names(rule, tool)]
    return max(found, key=lambda rule: STRICTNESS.index(rule.verdict), default=None)


def _first(call: _Call, rules: Sequence[Rule], verdict: Verdict, subjects: Sequence[Subject]) -> Rule | None:
    for rule in rules:
        if rule.verdict is verdict and (
            has_value(rule, call.tool, call.arguments) or any(_means(call, rule, subject) for subject in subjects)
        ):
            return rule
    return None


def _means(call: _Call, rule: Rule, subject: Subject) -> bool:
    """Whether an ask or deny rule applies to this subject or to one of its files."""
    if subject.is_possible:
        return False
    return touches(rule, call.tool, subject.text, subject.loose, call.place) or any(
        touches(rule, file.tool, file.text, file.loose, call.place) for file in subject.files if not file.opaque
    )


def _by_mode(tool: str, mode: Mode, *, reads: bool) -> Judgement | None:
    if mode is Mode.BYPASS:
        return Judgement(verdict=Verdict.ALLOW, rule="mode bypass", reason="the run bypasses permissions")
    if mode is Mode.ACCEPT_EDITS and tool in guards.EDITS:
        return Judgement(verdict=Verdict.ALLOW, rule="mode accept-edits", reason="the run accepts edits")
    if mode is Mode.READ_ONLY and not reads and tool != "done":
        return Judgement(verdict=Verdict.DENY, rule="mode read-only", reason="the run may only read")
    return None


def _by_allow(call: _Call, scoped: Sequence[Rule], given: Sequence[Rule]) -> Judgement | None:
    """Return the allow rules that together cover every subject, or None if a subject isn't covered."""
    used: list[str] = []
    for subject in call.subjects:
        if subject.passive:
            continue
        cover = _cover(call, scoped, given, subject)
        if cover is None:
            return None
        used.extend(cover)
    if not used:
        return None
    text = ", ".join(dict.fromkeys(used))
    return Judgement(verdict=Verdict.ALLOW, rule=text, reason=f"allowed by {text}")


def _cover(call: _Call, rules: Sequence[Rule], given: Sequence[Rule], subject: Subject) -> tuple[str, ...] | None:
    """Return the allow rules that cover this subject: the tool's own rules or, for a redirect, the rules for the file
    that it writes. An exact rule doesn't cover a command with a computed word.
    """
    if subject.opaque:
        return None
    if None in subject.words:
        rules, given = ([rule for rule in each if not is_exact(rule)] for each in (rules, given))
    held = (call.tool, subject.text, subject.loose)
    if subject.reads_input:  # an approval of a command isn't one of everything that may feed it
        given = [rule for rule in given if not is_exact(rule)]
    if (own := _allow(rules, given, held, call.place)) is not None:
        return (own,)
    if not subject.files or subject.words[:1] == () or subject.words[0] not in WRITING_REDIRECTS:
        return None
    writes = [_write_allow(call, rules, given, file) for file in subject.files]
    return None if None in writes else tuple(text for text in writes if text)


def _write_allow(call: _Call, rules: Sequence[Rule], given: Sequence[Rule], file: Touched) -> str | None:
    if file.opaque:
        return None
    found = (_allow(rules, given, (tool, file.text, file.loose), call.place) for tool in sorted(guards.EDITS))
    return next((text for text in found if text is not None), None)


def _allow(rules: Sequence[Rule], given: Sequence[Rule], held: tuple[str, str, str], place: Place) -> str | None:
    for rule in rules:
        if rule.verdict is Verdict.ALLOW and covers(rule, *held, place):
            return rule.text
    return next((rule.text for rule in given if covers(rule, *held, place, exact=True)), None)


def _by_bare(bare: Rule | None) -> Judgement | None:
    if bare is None:
        return None
    return Judgement(verdict=bare.verdict, rule=bare.text, reason=f"the rule {bare.text} says {bare.verdict}")


def _by_default(tool: str, rules: Mapping[str, str], declared: Verdict | None) -> Judgement:
    if DEFAULT in rules:
        verdict = parse_rule(DEFAULT, rules[DEFAULT]).verdict
        return Judgement(verdict=verdict, rule=DEFAULT, reason=f"the run's default is {verdict}")
    if declared is not None:
        return Judgement(verdict=declared, rule="declared", reason=f"no rule names {tool}, which declares {declared}")
    verdict = BUILT_IN.get(tool, Verdict.DENY)
    return Judgement(
        verdict=verdict, rule="built-in", reason=f"no rule names {tool}; the built-in default is {verdict}"
    )


def _guarded(call: _Call, scoped: Sequence[Rule], given: Sequence[Rule], mode: Mode) -> Judgement | None:
    if call.tool not in guards.GUARDED:
        return None
    line = guards.line_of(call.subjects, call.place)
    for subject in call.subjects:
        guard = guards.guard_of(call.tool, subject, line)
        if guard is None or (not guard.firm and (mode is Mode.BYPASS or _named(call, scoped, given, subject))):
            continue
        return _held_back(guard, can_be_granted=not guard.firm)
    return None


def _unless_guarded_text(call: _Call, judged: Judgement) -> Judgement:
    """Return an ask instead of an allow if a guard might apply to a part of the call that can't be analyzed."""
    if judged.verdict is not Verdict.ALLOW or call.tool not in guards.GUARDED:
        return judged
    guard = guards.hidden_guard(call.tool, call.subjects, guards.line_of(call.subjects, call.place))
    return judged if guard is None else _held_back(guard, can_be_granted=False)


def _held_back(guard: guards.Guard, *, can_be_granted: bool) -> Judgement:
    reason = f"{guard.what} is never approved by itself"
    return Judgement(
        verdict=Verdict.ASK,
        rule=GUARD + guard.what,
        reason=reason,
        can_be_granted=can_be_granted,
        is_guarded=True,
    )


def _named(call: _Call, scoped: Sequence[Rule], given: Sequence[Rule], subject: Subject) -> bool:
    """Whether a grant covers the guarded call or a rule spells it out."""
    allows = [rule for rule in scoped if rule.verdict is Verdict.ALLOW]
    spelled = [rule for rule in allows if guards.spells_out(rule, rule.tool, call.place)]
    return _cover(call, spelled, given, subject) is not None


def _unless_hidden(call: _Call, judged: Judgement, scoped: Sequence[Rule], subjects: Sequence[Subject]) -> Judgement:
    """Return an ask instead of an allow if a deny or ask rule might match a part of the call that can't be analyzed."""
    if judged.verdict is not Verdict.ALLOW:
        return judged
    held_back = [rule for rule in scoped if rule.verdict is not Verdict.ALLOW]
    for subject in subjects:
        if rule := next((rule for rule in held_back if _may_mean(call, rule, subject)), None):
            reason = f"it is unclear whether {rule.text} applies to {subject.text}{_because(subject)}"
            is_known = not (subject.opaque or None in subject.words)
            return Judgement(verdict=Verdict.ASK, rule=rule.text, reason=reason, can_be_granted=is_known)
    return judged


def _because(subject: Subject) -> str:
    return f", because of {subject.cause}" if subject.cause not in ("", subject.text) else ""


def _explained(call: _Call, judged: Judgement, scoped: Sequence[Rule]) -> Judgement:
    """Add to an ask's reason the part of the call that no allow rule can cover."""
    opaque = next((subject for subject in call.subjects if subject.opaque and subject.cause), None)
    is_tried = any(rule.verdict is Verdict.ALLOW and names(rule, call.tool) for rule in scoped)
    if opaque is None or not is_tried or judged.verdict is not Verdict.ASK:
        return judged
    return replace(judged, reason=f"{judged.reason}, and no allow rule covers the unclear part: {opaque.cause}")


def _may_mean(call: _Call, rule: Rule, subject: Subject) -> bool:
    """Whether the rule might apply to an unparsed or computed part of this subject."""
    if subject.is_possible:
        return touches(rule, call.tool, subject.text, subject.loose, call.place)
    if may_become(rule, call.tool, subject.words):
        return True
    if subject.opaque:
        return names(rule, call.tool) or (
            kind_of(call.tool) is Kind.COMMAND
            and any(guards_too(rule, tool) for tool in ("read_file", "write_file", "delete_file"))
        )
    if subject.reaches and may_reach(rule, call.tool, subject.text, subject.loose, call.place):
        return True
    return any(file.opaque and guards_too(rule, file.tool) for file in subject.files) or any(
        may_match(rule, file.tool, file.text)
        if file.opaque
        else touches(rule, file.tool, file.text, file.loose, call.place)
        for file in subject.mentions
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """One agent in a chain from the root to a run."""

    whose: str
    """The agent's name, for display."""
    rules: Mapping[str, str] = field(default_factory=dict)
    mode: Mode = Mode.DEFAULT
    grants: tuple[str, ...] = ()


def judge_under(
    tool: str,
    subjects: Sequence[Subject],
    chain: Sequence[Level],
    *,
    arguments: JsonObject = _NOTHING,
    reads: bool = False,
    declared: Verdict | None = None,
    place: Place = _NOWHERE,
) -> Judgement:
    """Return the strictest verdict among the levels, which are ordered from the root. If several levels give the same
    verdict, the level nearest the root decides.

    If an ancestor's rules require approval, a person is asked on the child's behalf. A person's grant then satisfies
    that ancestor's rules.
    """
    said = [
        replace(
            judge(
                tool,
                subjects,
                level.rules,
                arguments=arguments,
                mode=level.mode,
                reads=reads,
                declared=declared,
                grants=level.grants,
                place=place,
            ),
            whose=level.whose,
        )
        for level in chain
    ]
    if not said:
        return Judgement(verdict=Verdict.DENY, rule="built-in", reason="no rules were given")
    strictest = max(said, key=lambda judged: STRICTNESS.index(judged.verdict))
    if strictest is said[-1]:
        return strictest
    return replace(strictest, reason=f"{strictest.reason}, in the rules of {strictest.whose} above")


def judge_by_hand(
    tool: str,
    subjects: Sequence[Subject],
    chain: Sequence[Level],
    *,
    arguments: JsonObject = _NOTHING,
    reads: bool = False,
    declared: Verdict | None = None,
    place: Place = _NOWHERE,
) -> Judgement:
    """Judge a call that a person makes by hand in place of an agent, under the rules of that agent.

    An ask means that only a person who may approve the call may make it. No second person looks at the call, so
    what would need an approval in any case is denied: guards deny instead of asking, and a scoped ask rule doesn't
    permit what would be denied without the rule.
    """
    judging = partial(judge_under, tool, subjects, arguments=arguments, reads=reads, declared=declared, place=place)
    for level in chain:
        without = judging((replace(level, rules=_without_scoped_asks(level.rules)),))
        if without.is_guarded:
            reason = f"{without.rule.removeprefix(GUARD)} needs a rule that allows {tool} for exactly this file"
            return replace(without, verdict=Verdict.DENY, reason=reason, can_be_granted=False)
        if without.verdict is Verdict.DENY:
            return without
    return judging(chain)


def _without_scoped_asks(rules: Mapping[str, str]) -> Mapping[str, str]:
    return {rule.text: rule.verdict for rule in parse_rules(rules) if rule.pattern is None or rule.verdict != "ask"}
