"""Check a run of an eval: its answer, its files and its tool calls, also with your own function or with a model."""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from loom.activities.output_schema import OutputSchema
from loom.app.forms.eval_case import (
    CalledCheck,
    Check,
    ContainsCheck,
    EvalCase,
    ExactCheck,
    FileCheck,
    JudgeCheck,
    NotCalledCheck,
    RegexCheck,
    RuleCheck,
    SchemaCheck,
)
from loom.app.loading import load_function
from loom.cli.output import one_line
from loom.domain.core.json_text import NotJson
from loom.domain.core.output_schema import values_of
from loom.domain.evals.report import CheckedRun, CheckResult, EvalRun

Rule: TypeAlias = Callable[[EvalRun], Any]
Judge: TypeAlias = Callable[[EvalRun, JudgeCheck], Awaitable[CheckResult]]

LABEL: Final = 60
"""The maximum length of a check's label, in characters."""
MOST_BYTES: Final = 10_000_000
"""The maximum size of a file whose text is checked."""


def rules_of(cases: Sequence[EvalCase], folder: Path) -> Mapping[str, Rule]:
    """Load the functions that the cases name, from modules or from files beside the data set.

    Raises BadRequest if one can't be loaded.
    """
    return {
        check.rule: load_function(check.rule, label=f"{case.where}: rule {check.rule!r}", folder=folder)
        for case in cases
        for check in case.checks
        if isinstance(check, RuleCheck)
    }


async def checked(run: EvalRun, checks: Sequence[Check], *, rules: Mapping[str, Rule], judge: Judge) -> CheckedRun:
    """Return the run with the result of each check. Judges run only if all other checks pass."""
    known = [await _result(run, check, rules) for check in checks if not isinstance(check, JudgeCheck)]
    is_hopeless = not CheckedRun(run=run, checks=tuple(known)).passed
    results = iter(known)
    every: list[CheckResult] = []
    for check in checks:
        if not isinstance(check, JudgeCheck):
            every.append(next(results))
        else:
            every.append(_not_judged(check) if is_hopeless else await judge(run, check))
    return CheckedRun(run=run, checks=tuple(every))


def label_of(check: Check) -> str:
    """Return the check's label for reports: its first field."""
    field, value = next(iter(check.model_dump(by_alias=True).items()))
    return field if isinstance(value, dict) else one_line(f"{field}: {value}", LABEL)


async def _result(run: EvalRun, check: Check, rules: Mapping[str, Rule]) -> CheckResult:
    problem = await _problem(run, check, rules)
    return CheckResult(check=label_of(check), passed=not problem, reason=problem)


async def _problem(run: EvalRun, check: Check, rules: Mapping[str, Rule]) -> str:
    """Return what is wrong, or an empty text if the check passes."""
    match check:
        case ExactCheck() | ContainsCheck() | RegexCheck():
            return _text_problem(run.output, **check.model_dump())
        case SchemaCheck():
            return _schema_problem(run, check)
        case FileCheck():
            return await asyncio.to_thread(_file_problem, run, check)
        case CalledCheck():
            return _call_problem(run, check)
        case NotCalledCheck():
            made = [each for each in run.calls if each.is_call_of(check.not_called, check.arguments)]
            return f"it was called: {made[0]}" if made else ""
        case RuleCheck():
            return await _rule_problem(run, rules[check.rule])
        case JudgeCheck():
            raise AssertionError("a judge is asked elsewhere")


def _text_problem(text: str, *, exact: str | None = None, contains: str | None = None, regex: str | None = None) -> str:
    if exact is not None and text.strip() != exact.strip():
        return f"the text is {_shown(text)}"
    if contains is not None and contains not in text:
        return f"the text doesn't contain {contains!r}: {_shown(text)}"
    if regex is not None and re.search(regex, text) is None:
        return f"the text doesn't match {regex!r}: {_shown(text)}"
    return ""


def _schema_problem(run: EvalRun, check: SchemaCheck) -> str:
    try:
        values = (run.structured_output,) if run.structured_output is not None else values_of(run.output)
    except NotJson as error:
        return str(error)
    return "; ".join(OutputSchema(check.json_schema).check(values).problems)


def _file_problem(run: EvalRun, check: FileCheck) -> str:
    path = Path(run.workspace) / check.file
    if not Path(run.workspace).is_dir():
        return f"the run's workspace {run.workspace} no longer exists"
    if not path.resolve().is_relative_to(Path(run.workspace).resolve()):
        return "it is a link to a place outside the workspace"
    if path.is_file() is not check.exists:
        return "there is no such file" if check.exists else "the file exists"
    if (check.exact, check.contains, check.regex) == (None, None, None):
        return ""
    try:
        if path.stat().st_size > MOST_BYTES:
            return f"it has more than {MOST_BYTES} bytes"
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return f"it can't be read as text: {error}"
    return _text_problem(text, exact=check.exact, contains=check.contains, regex=check.regex)


def _call_problem(run: EvalRun, check: CalledCheck) -> str:
    made = [
        each
        for each in run.calls
        if each.is_call_of(check.called, check.arguments) and check.status in (None, each.status)
    ]
    if check.times is not None and len(made) != check.times:
        return f"it was called {len(made)} times instead of {check.times}"
    return "" if made else f"no call matches; the run's calls are: {'; '.join(map(str, run.calls)) or 'none'}"


async def _rule_problem(run: EvalRun, rule: Rule) -> str:
    """Return why the rule rejects the run. A rule may use `assert`, or return False."""
    try:
        answer = await asyncio.to_thread(rule, run)
        if inspect.isawaitable(answer):
            answer = await answer
    except AssertionError as error:
        return str(error) or "an assertion failed"
    except Exception as error:  # noqa: BLE001 - a fault in a user's rule is a failed check, and the others continue
        return f"it raised {type(error).__name__}: {error}"
    if answer is None or answer is True:
        return ""
    return "it returned False" if answer is False else f"it returned {answer!r:.100} instead of True, False or None"


def _not_judged(check: JudgeCheck) -> CheckResult:
    return CheckResult(check=label_of(check), passed=False, reason="not judged, because the run has already failed")


def _shown(text: str) -> str:
    return repr(one_line(text, 200))
