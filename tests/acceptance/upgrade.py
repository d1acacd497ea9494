"""Runs that an earlier release started, finished by this one: `python -m tests.acceptance.upgrade --base 0.3.0`.

Installs the earlier release from this repository's history, starts runs on it, and kills its worker in a command of
one of them. Then it stops that release while the others wait, starts this one in the same home, and finishes the runs.
No command may be executed twice. It takes about three minutes and is run before a release (`make upgrade`). The
recorded histories under `tests/replay` are its short form, which runs with every test.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import psutil

from tests.processes import command_of

CHECKOUT: Final = Path(__file__).parents[2]
SOURCES: Final = CHECKOUT / "examples" / "audit" / "sources"
RELEASES: Final[Mapping[str, str]] = json.loads((CHECKOUT / "tests/replay/releases.json").read_text())
"""The commit of each release, since not every clone has the tags."""
PATIENCE: Final = 90.0
"""Seconds that one wait may take."""
ROTATE_AFTER: Final = 100
"""History events after which a run continues as new, the least that the setting takes."""

AUDIT: Final = "Audit the source code in this folder and write the report to report.md."
DELEGATE: Final = "delegate the review of each folder"
COMMAND: Final = "echo once >> effects; sleep 120"
"""Must not be executed twice, and is running when its worker is killed."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """One installed release and the home that it works in."""

    root: Path
    home: Path
    model_url: str
    """A scripted model that calls `COMMAND`."""

    def loom(self, *arguments: str) -> Any:
        """What a command printed, with `--json` as a value; raises RuntimeError with what it said when it failed."""
        done = subprocess.run(
            [str(self.root / ".venv/bin/loom"), *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.home.parent,
        )
        if done.returncode:
            raise RuntimeError(f"loom {' '.join(arguments)} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return json.loads(done.stdout) if "--json" in arguments and done.stdout.strip() else done.stdout

    @property
    def _environment(self) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("LOOM_", "TEMPORAL_", "PYTHON"))}
        return {
            **clean,
            "LOOM_HOME": str(self.home),
            "LOOM_MODEL": "demo",
            "OPENAI_BASE_URL": self.model_url,
            "OPENAI_API_KEY": "none",
            "LOOM_WORKSPACES": str(self.home.parent),
            "LOOM_ROTATE_AFTER_EVENTS": str(ROTATE_AFTER),
        }


def main() -> int:
    """Upgrade from one release or from each of them; the exit code says whether every run was finished."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", help="an earlier release or commit; without it, each release is tried")
    base = parser.parse_args().base
    return max(_upgraded(release) for release in ([base] if base else RELEASES))


def _upgraded(base: str) -> int:
    with TemporaryDirectory(prefix="loom-upgrade-") as place, _model() as model_url:
        where = Path(place)
        where.chmod(0o755)  # releases up to 0.3.0 start Postgres as another user, who must be able to enter
        before = Release(
            root=_installed(RELEASES.get(base, base), where / "before"), home=where / "home", model_url=model_url
        )
        after = Release(root=CHECKOUT, home=where / "home", model_url=model_url)
        try:
            runs = _started(before, where)
            print(f"{base}: {len(runs) - 1} runs wait, and a command of another one is running; killing its worker")
            _kill_worker(before.home)
        finally:
            before.loom("down")
        after.loom("up", "--detach")
        try:
            return _finished(after, runs, where)
        finally:
            after.loom("down")


def _installed(base: str, place: Path) -> Path:
    subprocess.run(["git", "clone", "--quiet", "--shared", str(CHECKOUT), str(place)], check=True)
    subprocess.run(["git", "-C", str(place), "checkout", "--quiet", base], check=True)
    subprocess.run(["make", "-C", str(place), "install", f"PYTHON={sys.executable}"], check=True)
    return place


@contextmanager
def _model() -> Iterator[str]:
    """Serve a model that calls `bash` once and then answers; yield its address."""
    arguments = ("--turns", "1", "--tool", "bash", "--arguments", json.dumps({"command": COMMAND}))
    command = [sys.executable, "-m", "loom.testing.model_server", *arguments]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def _kill_worker(home: Path) -> None:
    """Kill the worker and the supervisor, which would start it again. Temporal, Redis and Postgres go on."""
    for name in ("supervisor", "worker"):
        for process in psutil.process_iter():
            words = " ".join(command_of(process))
            if name in words and (str(home) in words or _home_of(process) == str(home)) and "python" in words:
                process.kill()
                process.wait()


def _home_of(process: psutil.Process) -> str:
    try:
        return str(process.environ().get("LOOM_HOME", ""))
    except psutil.Error:
        return ""


def _started(release: Release, where: Path) -> Sequence[str]:
    """Runs that wait for a person: a plain one, one that has continued as new, and one whose sub-agents wait."""
    release.loom("up", "--detach")
    plain = _start(release, where, "plain", AUDIT)
    rotated = _start(release, where, "rotated", AUDIT)
    tree = _start(release, where, "tree", DELEGATE, "--permissions", json.dumps({"read_file": "ask"}))
    for run in (plain, rotated, tree):
        _until_it_asks(release, run)
    allowed = json.dumps({"bash": "allow"})
    killed = _start(release, where, "killed", "run it", "--model", "openai:scripted", "--permissions", allowed)
    _rotate(release, rotated)
    _until("the command is running", (where / killed / "effects").exists)
    if not _continued_as_new(release, rotated):
        raise RuntimeError(f"{rotated} has not continued as new: no state of the earlier release is carried over")
    return (plain, rotated, tree, killed)


def _start(release: Release, where: Path, name: str, task: str, *options: str) -> str:
    workspace = where / name
    shutil.copytree(SOURCES, workspace / "app")
    given = ("--id", name, "--workspace", str(workspace), "--detach", "--json", *options)
    return str(release.loom("run", task, *given)["run_id"])


def _rotate(release: Release, run: str) -> None:
    """Pause and resume until the run has continued as new: each order adds five events to its history."""
    for _ in range(ROTATE_AFTER // 5):
        release.loom("pause", run)
        release.loom("resume", run)
    _until_it_asks(release, run)


def _continued_as_new(release: Release, run: str) -> bool:
    address = release.loom("doctor", "--json")["parts"]["temporal"]["address"]
    query = f"WorkflowId = '{run}' AND ExecutionStatus = 'ContinuedAsNew'"
    command = ("temporal", "workflow", "list", "--address", address, "--query", query, "--output", "json")
    listed = subprocess.run([release.root / ".venv/bin" / command[0], *command[1:]], check=True, capture_output=True)
    return bool(json.loads(listed.stdout or "[]"))


def _finished(release: Release, runs: Sequence[str], where: Path) -> int:
    wrong = []
    for run in runs:
        result = _answered(release, run)
        print(f"{run}: {result['status']}, {result['turns']} turns, {result['tool_calls']} tool calls")
        if result["status"] != "completed":
            wrong.append(f"{run} ended as {result['status']}: {result['error']}")
    reports = ((run, where / run / "report.md") for run in ("plain", "rotated"))
    wrong += [f"{run} wrote no report" for run, report in reports if not report.is_file()]
    if (times := (where / "killed" / "effects").read_text().split()) != ["once"]:
        wrong.append(f"the command that was running when its worker was killed was executed {len(times)} times")
    print("\n".join(wrong) or "every run of the earlier release was finished by this one")
    return 1 if wrong else 0


def _answered(release: Release, run: str) -> Any:
    """The result of a run whose every ask is approved for the rest of the run."""

    def ended() -> bool:
        status = _status(release, run)
        for ask in status["pending_approvals"]:
            try:
                release.loom("approve", run, ask["call_id"], "--for-run")
            except RuntimeError as error:  # an approval for the run has answered this ask, too
                if "ended with 2" not in str(error):
                    raise
        return status["status"] not in ("running", "waiting_for_approval")

    _until(f"{run} has ended", ended)
    return release.loom("result", run, "--json")


def _until_it_asks(release: Release, run: str) -> None:
    _until(f"{run} waits for approval", lambda: _status(release, run)["pending_approvals"])


def _status(release: Release, run: str) -> Any:
    return release.loom("status", run, "--json")


def _until(what: str, holds: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {PATIENCE:.0f} s: {what}")
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
