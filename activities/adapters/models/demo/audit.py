"""The rule for audits of source code: list and read the files, write a report, and read the report back."""

import re
from collections.abc import Sequence
from typing import Final

from loom.activities.adapters.models.demo.report import SourceFile, examine, report, summary
from loom.activities.adapters.models.demo.scene import MOST_FILES, Decision, Scene, answering, asking

SUFFIXES: Final = (".py", ".js", ".ts", ".go", ".rs", ".java", ".rb", ".c", ".sh")

_FOLDER = re.compile(
    r"\bin the folder ([\w-]+)|(?<!to )(?<![A-Za-z0-9_./~-])([A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*)/(?![\w.*])",
    re.IGNORECASE,
)
"""Matches a folder that the task names: `in the folder shop`, or `src/` unless something is written to it."""
_TARGET = re.compile(
    r"(?:\b(?:to|into|in|as|at)\s+|[写存][进到入为成]\s*)[`'\"]?([\w./-]+\.(?:md|markdown|txt))(?![A-Za-z0-9])",
    re.IGNORECASE,
)
"""Matches the file that the task wants the report in, in English or Chinese."""


def audit(scene: Scene) -> Decision:
    """List and read the files, and write the report."""
    if not scene.of("glob") and not scene.of("list_dir"):
        folder = _folder(scene)
        pattern = "**/*.py" if folder == "." else f"{folder}/**/*.py"
        return asking(scene, "I'll look at the files.", ("list_dir", {"path": folder}), ("glob", {"pattern": pattern}))
    sources = _sources(scene)
    if not sources:
        return answering(scene, f"I found no source files that I can read. {scene.failures}")
    if not scene.of("read_file"):
        reads = tuple(("read_file", {"path": path}) for path in sources)
        wishes = (*reads, ("grep", {"pattern": "TODO|FIXME", "path": _folder(scene)}))
        return asking(scene, f"Worth reading: {', '.join(sources)}.", *wishes)
    files = [examine(page.path, page.text, is_whole=page.is_whole) for page in scene.pages if page.path in sources]
    if not files:
        return answering(scene, f"I could read none of the files. {scene.failures}")
    return _hand_over(scene, files)


def _hand_over(scene: Scene, files: Sequence[SourceFile]) -> Decision:
    """Write the report, read it back, and return a description of the outcome."""
    writes = scene.of("write_file")
    if not writes:
        unread = {tried.path: tried.output for tried in scene.of("read_file") if tried.failed}
        elsewhere = _elsewhere(scene, {file.path for file in files})
        text = report(
            files,
            task=scene.request,
            unread=unread,
            elsewhere=elsewhere,
            notes=scene.notes,
            claimed=scene.brought.splitlines(),
        )
        if "write_file" not in scene.offered:
            return answering(scene, f"I have no tool to write a file, so here is the report.\n\n{text}")
        path = _target(scene)
        return asking(scene, f"{summary(files)}. I'll write {path}.", ("write_file", {"path": path, "content": text}))
    written = writes[-1]
    if written.failed:
        return answering(scene, f"{summary(files)}. The report was not written: {written.output}")
    path = written.path
    checks = [tried for tried in scene.of("read_file") if tried.path == path]
    if not checks and "read_file" in scene.offered:
        return asking(scene, f"I'll check the contents of {path}.", ("read_file", {"path": path}))
    held = bool(checks) and not checks[-1].failed and "# Audit of" in checks[-1].output
    check = "read back and complete" if held else "I could not confirm its contents"
    return answering(scene, f"{summary(files)}. The report is in {path} ({check}).")


def _folder(scene: Scene) -> str:
    return match[1] or match[2] if (match := _FOLDER.search(scene.request)) else "."


def _sources(scene: Scene) -> list[str]:
    # If a line contains an asterisk, it is the tool's message that no file matches.
    found = [line.strip() for line in scene.lines("glob") if line.strip().endswith(".py") and "*" not in line]
    found = found or [entry for entry in scene.entries if entry.endswith(SUFFIXES)]
    # Sort tests last, because production code is more important.
    return sorted(dict.fromkeys(found), key=lambda path: "test" in path)[:MOST_FILES]


def _elsewhere(scene: Scene, read: set[str]) -> list[str]:
    return [line for line in scene.lines("grep") if ":" in line and line.split(":")[0].removeprefix("./") not in read]


def _target(scene: Scene) -> str:
    named = (match[1] for text in (*reversed(scene.notes), scene.task) if (match := _TARGET.search(text)))
    return next(named, "report.md")
