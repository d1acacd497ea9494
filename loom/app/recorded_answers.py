"""An app that answers tool calls with the results of recorded runs. No tool runs.

`loom what-if` writes a recording, and starts a worker that serves this app on a separate task queue.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loom.app.loading import load_app
from loom.app.loom_app import LoomApp
from loom.domain.agents.hook_steps import Moment
from loom.domain.agents.hooks import Deny, Hook, Instead
from loom.domain.core.messages import canonical
from loom.domain.core.tasks import Task
from loom.domain.evals.what_if import INTERCEPTOR, NOT_RECORDED, RecordedAnswer


@dataclass
class RecordedAnswers:
    """An interceptor that answers recorded calls by their tool and arguments, and denies all others."""

    answers: dict[str, Sequence[RecordedAnswer]]
    """The recorded calls, in order, by the id of the what-if run."""
    _given: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)
    """The ids of identical calls, in order. If a call was recorded several times, each recording has its own result."""

    def before(self, task: Task) -> Instead | Deny:
        """Answer the call instead of its tool. A call that is made more often than recorded gets the last result."""
        tool, arguments = str(task.parameters["tool"]), canonical(task.parameters["arguments"])
        recorded = [
            each.content
            for each in self.answers.get(task.run_id, ())
            if each.tool == tool and canonical(each.arguments) == arguments
        ]
        if not recorded:
            return Deny(NOT_RECORDED)
        alike = self._given.setdefault((task.run_id, tool, arguments), [])
        call_id = str(task.parameters["call_id"])
        if call_id not in alike:
            alike.append(call_id)
        return Instead(recorded[min(alike.index(call_id), len(recorded) - 1)])


def app_of_recording(path: Path) -> LoomApp:
    """Return the app that a recording names, with recorded answers instead of its tools' results.

    Only those of the app's hooks that judge tool calls are called. Raises BadRequest if the app can't be loaded.
    """
    recording: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    app = LoomApp()
    if recording["app"]:
        other = load_app(recording["app"])
        app.include(other)
        app._hooks[:] = [each for each in other.hooks if isinstance(each, Hook) and each.moment is Moment.TOOL_CALL]  # noqa: SLF001
        app._handlers.clear()  # noqa: SLF001 - a what-if handles no tasks
    for name, extended in recording["agents"].items():
        app.create_agent(name, extends=extended, system_prompt=recording["prompt"])
    answers: dict[str, Sequence[RecordedAnswer]] = {
        run: [RecordedAnswer(**each) for each in calls] for run, calls in recording["answers"].items()
    }
    app.intercept(RecordedAnswers(answers), name=INTERCEPTOR, around=["tool"])
    return app
