"""An app with hooks that ask, fail and change answers, for stories of the corpus."""

from loom import Ask, LoomApp, RunInfo, Task

app = LoomApp()


@app.on_start
def gate(run: RunInfo) -> Ask | None:
    """Ask a person about production, and fail for others."""
    if "oops" in run.task:
        raise ValueError("oops")
    return Ask("this is about production") if "prod" in run.task else None


@app.intercept
class Polite:
    """Changes the task and the answer."""

    def before(self, task: Task) -> None:
        """Let everything pass."""

    def after(self, task: Task, result: str) -> str | None:
        """Thank for answers."""
        return f"{result}, thank you" if "task" in task.parameters else None
