"""Preview the tools of a package that isn't enabled. The package's code runs in the sandbox without network access.

`python -m loom.app.package_preview NAME` prints one JSON value. `described` runs this command in the sandbox.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from loom.activities.toolbox.built_in.shell import Sandbox
from loom.app.packages import app_of, installed
from loom.domain.core.errors import BadRequest, LoomError
from loom.domain.core.tool_calls import ToolSpec

PATIENCE: Final = 30.0
_MOST: Final = 2_000_000
BRIEF: Final = ("name", "description", "effect", "permission", "scope")
_MARK: Final = "loom-describes:"


async def described(name: str, sandbox: Sandbox) -> Sequence[dict[str, Any]]:
    """Return the tools of an installed package. The sandbox has to show the `installation`.

    Raises BadRequest with the reason if the tools can't be read.
    """
    with TemporaryDirectory() as folder:
        finished = await sandbox.run(
            [sys.executable, "-P", "-m", "loom.app.package_preview", name],
            workspace=Path(folder),
            timeout=PATIENCE,
            max_output=_MOST,
            on_output=lambda _: None,
        )
    told = next((line for line in finished.output.splitlines() if line.startswith(_MARK)), "")
    if not told:
        last = finished.output.strip().splitlines()[-1:] or [f"exit code {finished.exit_code}"]
        raise BadRequest(f"its tools cannot be shown: {last[0]}", field="packages")
    return _read(told.removeprefix(_MARK))


def installation() -> Sequence[Path]:
    """Return the folders of this Python environment. A sandbox has to open them, so that a package can be imported."""
    named = [Path(sys.prefix), *map(Path, filter(None, sys.path))]
    return tuple(dict.fromkeys(place for each in named if each.is_dir() for place in (each.absolute(), each.resolve())))


def _read(told: str) -> Sequence[dict[str, Any]]:
    """Parse the package's output. The output is untrusted, so its structure is validated too."""
    try:
        said = json.loads(told)
        return [{key: str(tool[key]) for key in BRIEF} for tool in said]
    except (ValueError, TypeError, KeyError):
        raise BadRequest("its tools cannot be shown: its output does not list them", field="packages") from None


def brief(spec: ToolSpec) -> dict[str, Any]:
    """Return a tool's name, effect, permission and the first line of its description."""
    return {
        "name": spec.name,
        "description": spec.description.partition("\n")[0],
        "effect": spec.effect,
        "permission": spec.declared,
        "scope": spec.scope,
    }


def main() -> None:
    """Import the package and print its tools."""
    try:
        tools = app_of(installed()[sys.argv[1]]).list_tools()
    except LoomError as error:
        sys.exit(error.message)
    sys.stdout.write(f"\n{_MARK}{json.dumps([brief(tool) for tool in tools])}\n")


if __name__ == "__main__":
    main()
