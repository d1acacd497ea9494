"""The runs of a data set. Their ids are derived from the eval's name, the case, the repeat, and the request.

An eval that was killed therefore finds its own runs again, and a case that has changed gets new runs.
"""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from loom.app.forms.eval_case import CASE_NAME, EvalCase
from loom.cli.arguments import absolute, read_attachments
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import canonical, short_digest
from loom.domain.core.requests import Budget, RunRequest
from loom.workflows.validation import read_request

PREFIX: Final = "eval"
"""The prefix of the ids of all runs of evals."""
_NOT_COPIED: Final = "__pycache__"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PlannedRun:
    """A run of a case. It may have been started already."""

    case: EvalCase
    repeat: int
    """From 1."""
    run_id: str
    request: Mapping[str, Any]
    budget: Budget
    """The limits in the request."""
    workspace: Path | None
    """The run's own folder. None if the case has no workspace."""

    def prepare_workspace(self) -> None:
        """Copy the case's workspace, unless the run already has its copy. A copy is complete, or it doesn't exist."""
        if self.workspace is None or self.case.workspace is None or self.workspace.exists():
            return
        fresh = self.workspace.with_name(f".{self.workspace.name}-{uuid4().hex[:8]}")
        try:
            shutil.copytree(self.case.workspace, fresh, symlinks=True, ignore=shutil.ignore_patterns(_NOT_COPIED))
            fresh.rename(self.workspace)
        except OSError as error:
            shutil.rmtree(fresh, ignore_errors=True)
            raise BadRequest(f"--workspaces: {self.workspace} can't be written: {error}", field="workspaces") from None


def planned_runs(
    cases: Sequence[EvalCase], *, name: str, repeats: int, changes: Mapping[str, Any], workspaces: Path
) -> tuple[PlannedRun, ...]:
    """Return the runs of an eval, case by case.

    `changes` contains the fields that replace those of the cases' requests. Rules are merged, and a `budget` applies
    only to cases without one. Raises BadRequest if a changed request is invalid, or if an attachment can't be read.
    """
    folder = Path(absolute(str(workspaces), "--workspaces"))
    runs: list[PlannedRun] = []
    for case in cases:
        if case.workspace is not None and folder.resolve().is_relative_to(case.workspace.resolve()):
            raise BadRequest(
                f"{case.where}: workspace: it contains {folder}, where its copies go: choose another folder with"
                " --workspaces",
                field="workspaces",
            )
        request = _request(case, changes)
        digest = _digest(case, request)
        for repeat in range(1, repeats + 1):
            run_id = f"{PREFIX}.{name}.{case.name}.{repeat}.{digest}"
            own = None if case.workspace is None else folder / run_id
            about = {PREFIX: {"name": name, "case": case.name, "repeat": repeat}}
            placed = {} if own is None else {"workspace": str(own)}
            whole = {**request, **placed, "metadata": {**request.get("metadata", {}), **about}}
            budget = _checked(case, whole).budget
            runs.append(
                PlannedRun(case=case, repeat=repeat, run_id=run_id, request=whole, budget=budget, workspace=own)
            )
    return tuple(runs)


def checked_name(name: str, option: str = "--name") -> str:
    """Return the name of an eval. Raises BadRequest if it can't be a part of a run's id."""
    if not re.fullmatch(CASE_NAME, name):
        raise BadRequest(f"{option}: {name!r} must have 1 to 60 letters, digits, hyphens and underscores", field=option)
    return name


def repeat_of(run_id: str, name: str) -> tuple[str, int] | None:
    """Return the case and the repeat in the id of an eval's run. None if the id has another form, such as a judge's."""
    found = re.fullmatch(rf"{PREFIX}\.{re.escape(name)}\.([^.]+)\.(\d+)\.[0-9a-f]+", run_id)
    return (found[1], int(found[2])) if found else None


def _request(case: EvalCase, changes: Mapping[str, Any]) -> dict[str, Any]:
    parts = {"parts": read_attachments(case.attach, f"{case.where}: attach")} if case.attach else {}
    rules = {**case.request.get("permissions", {}), **changes.get("permissions", {})}
    merged = {**changes, **({"permissions": rules} if rules else {})}
    merged |= {"budget": case.request["budget"]} if "budget" in case.request else {}
    return {**case.request, **merged, **parts}


def _checked(case: EvalCase, request: Mapping[str, Any]) -> RunRequest:
    try:
        return read_request(request)
    except BadRequest as error:
        raise BadRequest(f"{case.where}: {error.message}", **error.context) from None


def _digest(case: EvalCase, request: Mapping[str, Any]) -> str:
    try:
        files = "" if case.workspace is None else _digest_of_folder(case.workspace)
    except OSError as error:
        raise BadRequest(f"{case.where}: workspace: it can't be read: {error}", field="workspace") from None
    return short_digest(f"{canonical(request)}\n{files}")


def _digest_of_folder(folder: Path) -> str:
    found = blake2b(digest_size=16)
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if _NOT_COPIED in name.parts or (path.is_dir() and not path.is_symlink()):
            continue
        is_link = path.is_symlink()
        content = os.fsencode(path.readlink()) if is_link else path.read_bytes()
        found.update(b"%d\0%s\0%d\0%s" % (is_link, os.fsencode(name), len(content), content))
    return found.hexdigest()
