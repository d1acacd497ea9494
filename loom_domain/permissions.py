"""May this call run? One pure function answers, and names the rule it went by.

Rules map `tool` or `tool(pattern)` to allow, ask or deny. In order:
any matching deny, a scoped ask, the mode, a scoped allow, the bare rule, an explicitly given `default`,
the built-in default, else deny.

What a pattern is held against — the commands inside a shell line, the path a file tool touches — is prepared by the
caller as `Subject`s, since a shell parser and a file system are not pure. A deny or ask needs one matching subject, an
allow needs every one.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from loom_domain.errors import BadRequest
from loom_domain.tool_calls import Verdict

DEFAULT: Final = "default"
BUILT_IN: Final[Mapping[str, Verdict]] = {
    **dict.fromkeys(("read_file", "list_dir", "glob", "grep", "todo", "done", "ask_user"), Verdict.ALLOW),
    **dict.fromkeys(("write_file", "edit_file", "bash", "python", "http_fetch"), Verdict.ASK),
}
_EDITS: Final = frozenset({"write_file", "edit_file"})
_RULE: Final = re.compile(r"(?P<tool>[A-Za-z_][\w.-]*)(?:\((?P<pattern>.+)\))?", re.DOTALL)


class Mode(StrEnum):
    """A stance that stands above allow rules and below asks."""

    DEFAULT = "default"
    READ_ONLY = "read-only"
    ACCEPT_EDITS = "accept-edits"
    BYPASS = "bypass"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One line of a permission mapping."""

    tool: str
    pattern: str | None
    verdict: Verdict
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """One thing that a call touches: a command of a shell line, or a path of a file tool."""

    text: str
    loose: str = ""
    """For asks and denies: the command without any environment assignment before it."""
    opaque: bool = False
    """The parser could not see inside: no allow pattern covers it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """The answer and where it comes from."""

    verdict: Verdict
    rule: str
    reason: str


def parse_rule(text: str, verdict: str) -> Rule:
    """Read one entry of a mapping; raises BadRequest that names the entry."""
    match = _RULE.fullmatch(text.strip())
    if match is None:
        raise BadRequest(f"permission rule {text!r} is not `tool` or `tool(pattern)`", field="permissions")
    if verdict not in tuple(Verdict):
        raise BadRequest(
            f"permission rule {text!r} says {verdict!r}; it must be allow, ask or deny", field="permissions"
        )
    return Rule(tool=match["tool"], pattern=match["pattern"], verdict=Verdict(verdict), text=text)


def parse_rules(rules: Mapping[str, str]) -> tuple[Rule, ...]:
    """Read a whole mapping; raises BadRequest for the first entry that is wrong."""
    return tuple(parse_rule(text, verdict) for text, verdict in rules.items())


def judge(
    tool: str,
    subjects: Sequence[Subject],
    rules: Mapping[str, str],
    *,
    mode: Mode = Mode.DEFAULT,
    reads: bool = False,
    grants: Sequence[str] = (),
) -> Judgement:
    """Decide on one call of `tool` that touches `subjects`.

    `reads` says that it only reads; `grants` are allow rules that a person gave for the run: they outrank asks and
    bare rules, never a deny or the mode.
    """
    own = [rule for rule in parse_rules(rules) if rule.tool == tool]
    given = [rule for rule in parse_rules(dict.fromkeys(grants, Verdict.ALLOW)) if rule.tool == tool]
    scoped = [rule for rule in own if rule.pattern is not None]
    bare = next((rule for rule in own if rule.pattern is None), None)

    if denied := _first(scoped, Verdict.DENY, subjects) or (bare if bare and bare.verdict is Verdict.DENY else None):
        return Judgement(verdict=Verdict.DENY, rule=denied.text, reason=f"denied by the rule {denied.text}")
    open_ones = [subject for subject in subjects if _covering(given, (subject,)) is None]
    if asked := _first(scoped, Verdict.ASK, open_ones):
        return Judgement(verdict=Verdict.ASK, rule=asked.text, reason=f"the rule {asked.text} asks for a person")
    if moded := _by_mode(tool, mode, reads=reads):
        return moded
    if allowed := _covering([*scoped, *given], subjects):
        return Judgement(verdict=Verdict.ALLOW, rule=allowed, reason=f"allowed by {allowed}")
    bare = next((rule for rule in given if rule.pattern is None), bare)
    if bare is not None:
        judged = Judgement(verdict=bare.verdict, rule=bare.text, reason=f"the rule {bare.text} says {bare.verdict}")
    else:
        judged = _by_default(tool, rules)
    return _unless_hidden(judged, scoped, subjects)


def _unless_hidden(judged: Judgement, scoped: Sequence[Rule], subjects: Sequence[Subject]) -> Judgement:
    """A wide allow becomes an ask where a part that nobody can see into might be what a deny or an ask means."""
    held_back = next((rule for rule in scoped if rule.verdict is not Verdict.ALLOW), None)
    hidden = next((subject for subject in subjects if subject.opaque), None)
    if judged.verdict is not Verdict.ALLOW or held_back is None or hidden is None:
        return judged
    reason = f"nobody can tell whether {held_back.text} holds for {hidden.text}"
    return Judgement(verdict=Verdict.ASK, rule=held_back.text, reason=reason)


def _by_mode(tool: str, mode: Mode, *, reads: bool) -> Judgement | None:
    if mode is Mode.BYPASS:
        return Judgement(verdict=Verdict.ALLOW, rule="mode bypass", reason="the run bypasses permissions")
    if mode is Mode.ACCEPT_EDITS and tool in _EDITS:
        return Judgement(verdict=Verdict.ALLOW, rule="mode accept-edits", reason="the run accepts edits")
    if mode is Mode.READ_ONLY and not reads and tool != "done":
        return Judgement(verdict=Verdict.DENY, rule="mode read-only", reason="the run may only read")
    return None


def _by_default(tool: str, rules: Mapping[str, str]) -> Judgement:
    if DEFAULT in rules:
        verdict = parse_rule(DEFAULT, rules[DEFAULT]).verdict
        return Judgement(verdict=verdict, rule=DEFAULT, reason=f"the run's default is {verdict}")
    verdict = BUILT_IN.get(tool, Verdict.DENY)
    return Judgement(
        verdict=verdict, rule="built-in", reason=f"no rule names {tool}; the built-in default is {verdict}"
    )


def _first(rules: Iterable[Rule], verdict: Verdict, subjects: Sequence[Subject]) -> Rule | None:
    for rule in rules:
        if rule.verdict is verdict and any(_touches(rule, subject) for subject in subjects):
            return rule
    return None


def _covering(rules: Sequence[Rule], subjects: Sequence[Subject]) -> str | None:
    """The allow rules that together cover every subject, or None when one is left over."""
    allows = [rule for rule in rules if rule.verdict is Verdict.ALLOW]
    used: list[str] = []
    for subject in subjects:
        cover = next((rule for rule in allows if not subject.opaque and _matches(rule, subject.text)), None)
        if cover is None:
            return None
        used.append(cover.text)
    return ", ".join(dict.fromkeys(used)) or None


def _touches(rule: Rule, subject: Subject) -> bool:
    return _matches(rule, subject.text) or (subject.loose != "" and _matches(rule, subject.loose))


def _matches(rule: Rule, text: str) -> bool:
    if rule.pattern is None:
        return False
    return _compiled(rule.tool == "bash", rule.pattern).fullmatch(text) is not None


@lru_cache(maxsize=4096)
def _compiled(shell: bool, pattern: str) -> re.Pattern[str]:
    """A pattern as a regular expression: `*` spans anything; for commands a trailing ` *` or `:*` ends a word."""
    if not shell:
        return re.compile(_glob(pattern.removeprefix("./")), re.DOTALL)
    for ending in (":*", " *"):
        if pattern.endswith(ending):
            return re.compile(_star(pattern[: -len(ending)]) + r"(?:\s.*)?", re.DOTALL)
    return re.compile(_star(pattern), re.DOTALL)


def _star(pattern: str) -> str:
    return ".*".join(re.escape(piece) for piece in pattern.split("*"))


def _glob(pattern: str) -> str:
    """Path globs: `**` crosses folders, `*` and `?` do not."""
    pieces = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    spelled = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(spelled.get(piece, re.escape(piece)) for piece in pieces)
