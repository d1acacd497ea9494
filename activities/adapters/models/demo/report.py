"""Find problems in source text by counting and pattern matching, and write the demo model's report."""

import ast
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

LONG_FUNCTION: Final = 40
"""A function with at least this number of lines is reported as too long."""

_TODO = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
_SECRET = re.compile(
    r"""\w*(?:password|passwd|secret|token|api_?key)\w*["']?\s*(?::\s*\w+\s*)?[:=]\s*["'][^"']{6,}["']"""
    r"""|\bsk-[\w-]{16,}|\bAKIA[0-9A-Z]{16}\b|\bghp_\w{20,}""",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """The part of a file that was read, with the findings in it."""

    path: str
    lines: int
    functions: int = 0
    longest: str = ""
    longest_lines: int = 0
    undocumented: tuple[str, ...] = ()
    bare_excepts: tuple[int, ...] = ()
    todos: tuple[int, ...] = ()
    secrets: tuple[int, ...] = ()
    unparsed: bool = False
    """Whether the file contains Python code that can't be parsed. The lines of such a file are examined individually.
    """
    is_whole: bool = True
    """Whether the whole file was read. Otherwise, only some of its lines were examined."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A problem found in a file."""

    severity: str
    where: str
    what: str


def examine(path: str, text: str, *, is_whole: bool = True) -> SourceFile:
    """Examine the part of a file that was read."""
    lines = text.splitlines()
    todos = tuple(number for number, line in enumerate(lines, 1) if _TODO.search(line))
    secrets = tuple(number for number, line in enumerate(lines, 1) if _SECRET.search(line))
    if not is_whole or not path.endswith(".py"):
        return SourceFile(path=path, lines=len(lines), todos=todos, secrets=secrets, is_whole=is_whole)
    try:
        with warnings.catch_warnings(action="ignore"):
            nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):
        return SourceFile(path=path, lines=len(lines), todos=todos, secrets=secrets, unparsed=True)
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    longest = max(functions, key=_length, default=None)
    return SourceFile(
        path=path,
        lines=len(lines),
        functions=len(functions),
        longest=longest.name if longest else "",
        longest_lines=_length(longest) if longest else 0,
        undocumented=tuple(f.name for f in functions if not f.name.startswith("_") and not ast.get_docstring(f)),
        bare_excepts=tuple(node.lineno for node in nodes if isinstance(node, ast.ExceptHandler) and not node.type),
        todos=todos,
        secrets=secrets,
    )


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def findings(files: Sequence[SourceFile]) -> list[Finding]:
    """Return all findings, the most serious first."""
    found = [finding for file in files for finding in _in_file(file)]
    return sorted(found, key=lambda finding: ("high", "medium", "low").index(finding.severity))


def _in_file(file: SourceFile) -> Iterator[Finding]:
    for line in file.secrets:
        # Omit the line itself, so that the report can be shared.
        yield Finding(severity="high", where=f"{file.path}:{line}", what="looks like a hard-coded secret")
    for line in file.bare_excepts:
        yield Finding(severity="medium", where=f"{file.path}:{line}", what="bare `except:` hides every error")
    if file.unparsed:
        yield Finding(severity="medium", where=file.path, what="is not valid Python as far as it was read")
    if file.longest_lines >= LONG_FUNCTION:
        what = f"function `{file.longest}` has {file.longest_lines} lines"
        yield Finding(severity="medium", where=file.path, what=what)
    for line in file.todos:
        yield Finding(severity="low", where=f"{file.path}:{line}", what="unfinished: TODO or FIXME")
    if file.undocumented:
        names = ", ".join(f"`{name}`" for name in file.undocumented[:5])
        more = f" and {len(file.undocumented) - 5} more" if len(file.undocumented) > 5 else ""
        yield Finding(severity="low", where=file.path, what=f"no docstring: {names}{more}")


def summary(files: Sequence[SourceFile]) -> str:
    """Return the result as one sentence."""
    found = findings(files)
    grave = sum(finding.severity == "high" for finding in found)
    lines = sum(file.lines for file in files)
    read = f"{len(files)} file{'' if len(files) == 1 else 's'} with {lines} lines"
    return f"{read} read, {len(found)} finding{'' if len(found) == 1 else 's'}, {grave} of them serious"


def report(
    files: Sequence[SourceFile],
    *,
    task: str,
    unread: Mapping[str, str],
    elsewhere: Sequence[str],
    notes: Sequence[str],
    claimed: Sequence[str] = (),
) -> str:
    """Return the report in Markdown. `unread` maps paths to reasons. `elsewhere` lists unfinished places in files that
    weren't read.

    `claimed` contains the findings of another report. The report compares them with its own findings.
    """
    rows = [_row(file) for file in files]
    found = [f"- **{f.severity}** {f.where}: {f.what}" for f in findings(files)]
    sections = {
        "Summary": [
            f"{summary(files)}.",
            "",
            "Written by the demo model: it follows rules that count and match text, and it is not a language model.",
        ],
        "Task": [f"> {line}" for line in task.splitlines()],
        "Files": ["| file | lines | functions | longest function (lines) |", "|---|---|---|---|", *rows],
        "Findings": found or ["Nothing stands out."],
        "Findings from others": _compared(claimed, found),
        "Unfinished places in other files": [f"- {line}" for line in elsewhere],
        "Not read": [f"- {path}: {why}" for path, why in unread.items()],
        "Messages received during the audit": [f"- {note}" for note in notes],
    }
    body = "\n\n".join(f"## {title}\n\n" + "\n".join(lines) for title, lines in sections.items() if lines)
    return f"# Audit of {len(files)} file{'' if len(files) == 1 else 's'}\n\n{body}\n"


def _row(file: SourceFile) -> str:
    part = "" if file.is_whole else ", read in part"
    longest = f"{file.longest} ({file.longest_lines})" if file.longest else "–"
    return f"| {file.path} | {file.lines}{part} | {file.functions} | {longest} |"


def _compared(claimed: Sequence[str], found: Sequence[str]) -> list[str]:
    """Return lines that state which findings of another report are confirmed."""
    named = [line for line in claimed if line.startswith("- **")]
    if not named:
        return []
    wrong = [line for line in named if line not in found]
    verdict = f"{len(named) - len(wrong)} of the {len(named)} reported findings were also found here."
    return [verdict, *(["", "Not found here:", "", *wrong] if wrong else [])]
