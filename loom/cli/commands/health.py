"""`loom health`: whether the worker on this machine is serving, for health checks of containers.

It asks only the worker. If Temporal, Postgres or Redis is unavailable, the worker stays healthy, because a restart
wouldn't help. `loom doctor` checks everything.
"""

import re
from time import time
from typing import Annotated, Final
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

import typer

from loom.cli.arguments import Json
from loom.cli.output import print_json
from loom.composition.load_settings import read_settings
from loom.domain.core.errors import BadRequest, UnreachableError
from loom.domain.core.metrics import ALIVE
from loom.stack.state import read

app = typer.Typer()

LONGEST: Final = 60.0
"""Seconds without a sign of life after which a worker is stuck. It gives one every five seconds."""
_ANSWER: Final = 5.0


@app.command()
def health(
    longest: Annotated[
        float, typer.Option("--longest", metavar="SECONDS", help="Maximum age of the worker's last sign of life.")
    ] = LONGEST,
    as_json: Json = False,
) -> None:
    """Check that this machine's worker is serving. Use this as a container's health check.

    Exit code 5: no worker is serving here, or it is stuck.
    """
    settings = read_settings()
    stack = read(settings.home)
    if stack.worker_wanted and "metrics_port" not in settings.model_fields_set:
        # The usual port may be that of another stack's worker.
        settings = settings.model_copy(update={"metrics_port": stack.ports.get("metrics", settings.metrics_port)})
    if settings.metrics_port is None or settings.metrics_port == 0:
        raise BadRequest("`loom health` needs a fixed LOOM_METRICS_PORT", field="LOOM_METRICS_PORT")
    host = "127.0.0.1" if settings.metrics_host in ("0.0.0.0", "") else settings.metrics_host  # noqa: S104 - compared
    age = time() - last_sign_of_life(f"http://{host}:{settings.metrics_port}/metrics")
    if age > longest:
        raise UnreachableError(f"the worker is stuck: its last sign of life is {age:.0f} s old")
    if as_json:
        print_json({"ok": True, "age": round(age, 1)})


def last_sign_of_life(url: str) -> float:
    """Return the Unix time of the worker's last sign of life. Raises UnreachableError if there is none."""
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=_ANSWER) as answer:
            text = answer.read().decode()
    except (URLError, OSError) as error:
        raise UnreachableError(f"no worker serves metrics at {url}: {getattr(error, 'reason', error)}") from None
    found = re.search(rf"^{ALIVE.name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    if found is None:
        raise UnreachableError(f"the worker at {url} is not serving yet: it waits for its servers, or is starting")
    return float(found[1])
