"""Write lines, ask the rules, run what is allowed, and report the lines that ran what their rules don't name."""

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, TypeVar

from loom.activities.adapters.shell.parser import BashParser
from loom.activities.toolbox.built_in.shell import shell_tool
from loom.domain.core.tool_calls import Verdict
from loom.domain.permissions.judge import Judgement, judge
from loom.domain.permissions.subjects import Place, Subject
from tests.integration.attacks.shell_fuzz.arena import Arena, Ran
from tests.integration.attacks.shell_fuzz.grammar import Vocabulary, Writer, tokens_of
from tests.integration.attacks.shell_fuzz.rule_sets import RULE_SETS, RuleSet, granted

T = TypeVar("T")

_GRANTS_EVERY: Final = 25
_VARIANTS: Final = 4
_MUTATED: Final = 0.45
_BATCH: Final = 500
_ROUNDS: Final = 12
_KEPT: Final = 60
"""Allowed lines of a batch that are mutated later."""
_SEEDS: Final = Path(__file__).with_name("seeds.jsonl")


def seeds() -> Sequence[str]:
    """Return lines at the edge of what the rules understand, with which mutation begins."""
    return [json.loads(line) for line in _SEEDS.read_text(encoding="utf-8").splitlines()]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A line that ran what its rules don't name."""

    line: str
    under: str
    """The rule set's name."""
    reason: str
    """The verdict's reason."""
    strangers: tuple[Ran, ...]

    def __str__(self) -> str:
        ran = "; ".join(" ".join(each) for each in self.strangers[:3])
        return f"{self.line!r}\n    under {self.under}, {self.reason}: ran {ran[:200] or 'nothing'}"


@dataclass(kw_only=True)
class Report:
    """What came of a number of lines."""

    lines: int = 0
    allowed: int = 0
    """Pairs of a line and a rule set that allows it."""
    executed: int = 0
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: "Report") -> None:
        """Add another report to this one."""
        self.lines += other.lines
        self.allowed += other.allowed
        self.executed += other.executed
        self.findings += other.findings


class Judge:
    """The judging code of the `bash` tool, with a workspace for the paths in a line."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._place = Place(workspace=str(workspace), home="/home/nobody")
        self._tool = shell_tool(None, BashParser(), 60, "")

    def subjects(self, line: str) -> Sequence[Subject]:
        """Return what a line touches."""
        return self._tool.subjects(self._tool.parse({"command": line}), self._workspace)

    def verdict(self, subjects: Sequence[Subject], rules: Mapping[str, str]) -> Judgement:
        """Judge the subjects as a run does."""
        return judge("bash", subjects, rules, place=self._place)

    def offered(self, line: str) -> Sequence[str]:
        """Return the rules that an approval for the run would add."""
        return self._tool.grants(self._tool.parse({"command": line}))


class Hunt:
    """A seeded hunt in an empty folder."""

    def __init__(self, folder: Path, seeds: Sequence[str] = ()) -> None:
        """`seeds` are lines of others, which are mutated along with the hunt's own."""
        for name in ("workspace", "arena"):
            (folder / name).mkdir()
        self._judge = Judge((folder / "workspace").resolve())
        self._arena = Arena(folder / "arena")
        self._seeds = seeds
        self._rule_sets = {each.name: each for each in RULE_SETS}
        self._crashes: list[Finding] = []

    def run(self, seed: str, lines: int) -> Report:
        """Try that many lines. The same seed tries the same lines on the same code."""
        report, random = Report(), Random(seed)
        near: list[str] = list(self._seeds)
        while report.lines < lines:
            batch = self._batch(random, near, min(_BATCH, lines - report.lines))
            tried, allowed = self.tried(batch)
            report.add(tried)
            report.add(self._approved(random, batch[::_GRANTS_EVERY], batch))
            near += random.sample(allowed, min(len(allowed), _KEPT))
        report.findings += self._crashes
        return report

    def tried(self, lines: Sequence[str]) -> tuple[Report, Sequence[str]]:
        """Try these lines under every rule set, and return the allowed ones as well."""
        allowed = {line: found for line in dict.fromkeys(lines) if (found := list(self._allowing(line)))}
        report = self._executed(allowed)
        report.lines += len(lines)
        report.findings += self._crashes
        self._crashes.clear()
        return report, list(allowed)

    def shrunk(self, finding: Finding) -> Finding:
        """Return the finding with the shortest line that still shows it."""
        for _ in range(_ROUNDS if finding.under in self._rule_sets else 0):
            tried = {
                line: list(self._allowing(line, (self._rule_sets[finding.under],))) for line in _shorter(finding.line)
            }
            found = self._executed({line: verdicts for line, verdicts in tried.items() if verdicts}).findings
            if not found:
                break
            finding = min(found, key=lambda each: len(each.line))
        return finding

    def _batch(self, random: Random, near: Sequence[str], lines: int) -> list[str]:
        batch: list[str] = []
        while len(batch) < lines:
            writer = Writer(random, random.choice(RULE_SETS).vocabulary)
            others = near if near and random.random() < 0.7 else batch
            is_mutated = others and random.random() < _MUTATED
            line = writer.mutated(random.choice(others), others) if is_mutated else writer.line()
            if line.strip() and "\0" not in line and len(line) < 1000:
                batch.append(line)
        return batch

    def _allowing(self, line: str, among: Sequence[RuleSet] = RULE_SETS) -> Iterator[tuple[RuleSet, Judgement]]:
        crashes = len(self._crashes)
        subjects = self._asked(self._judge.subjects, line)
        if crashes < len(self._crashes):
            return
        for rules in among:
            verdict = self._judge.verdict(subjects, rules.rules)
            if verdict.verdict is Verdict.ALLOW:
                yield rules, verdict

    def _asked(self, question: Callable[[str], Sequence[T]], line: str) -> Sequence[T]:
        """Ask the judging code about a line. A line at which it raises is a finding."""
        try:
            return question(line)
        except Exception as error:  # noqa: BLE001 - whatever it raises is what the hunt is for
            reason = f"{question.__name__} raised {error!r}"
            self._crashes.append(Finding(line=line, under="the parser", reason=reason, strangers=()))
            return ()

    def _executed(self, allowed: dict[str, list[tuple[RuleSet, Judgement]]]) -> Report:
        report = Report(allowed=sum(map(len, allowed.values())), executed=len(allowed))
        for (line, verdicts), ran in zip(allowed.items(), self._arena.run(list(allowed)), strict=True):
            for rules, verdict in verdicts:
                if strangers := rules.strangers(ran):
                    found = Finding(line=line, under=rules.name, reason=verdict.reason, strangers=strangers)
                    report.findings.append(found)
        return report

    def _approved(self, random: Random, lines: Sequence[str], others: Sequence[str]) -> Report:
        """Approve lines for the run, and try their variants under what was granted."""
        offers = {line: offer for line in dict.fromkeys(lines) if (offer := self._asked(self._judge.offered, line))}
        allowed: dict[str, list[tuple[RuleSet, Judgement]]] = {}
        for (line, offer), original in zip(offers.items(), self._arena.run(list(offers)), strict=True):
            rules = granted(offer, original)
            self._rule_sets[rules.name] = rules
            writer = Writer(random, _programs_of(offer))
            variants = [writer.mutated(line, others) for _ in range(_VARIANTS)] + [
                writer.line() for _ in range(_VARIANTS)
            ]
            for each in variants:
                if each.strip() and "\0" not in each:
                    allowed.setdefault(each, []).extend(self._allowing(each, (rules,)))
        return self._executed({line: verdicts for line, verdicts in allowed.items() if verdicts})


def _programs_of(offer: Sequence[str]) -> Vocabulary:
    named = [rule.removeprefix("bash(").removesuffix(")").removesuffix(":*") for rule in offer]
    return Vocabulary(named, ("id", "rm x", "evil x"))


def _shorter(line: str) -> Iterator[str]:
    """Yield the line without each of its spans of tokens, halving the span's length."""
    tokens = tokens_of(line)
    width = len(tokens) // 2
    while width:
        for at in range(len(tokens) - width + 1):
            if (shorter := "".join(tokens[:at] + tokens[at + width :])).strip():
                yield shorter
        width //= 2


def shape_of(line: str) -> str:
    """Return the line with all words alike, by which findings of one kind are told."""
    return re.sub(r"[\w./-]+", "w", line)


def hunted(chunk: tuple[str, int, int]) -> tuple[Report, Sequence[Finding]]:
    """Return what a chunk found, and the shortest forms of some of it."""
    seed, lines, shrink = chunk
    with tempfile.TemporaryDirectory() as folder:
        hunt = Hunt(Path(folder).resolve(), seeds())
        report = hunt.run(seed, lines)
        unlike = {shape_of(each.line): each for each in sorted(report.findings, key=lambda each: -len(each.line))}
        return report, [hunt.shrunk(each) for each in [*unlike.values()][::-1][:shrink]]
