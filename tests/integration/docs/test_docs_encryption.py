"""The commands of docs/encryption.md run, one after the other, on the same servers."""

import asyncio
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from loom.testing.harness import Addresses, harness
from loom.testing.model_server import text
from loom.testing.waiting import eventually
from tests.docs_pages import SHELLS, blocks_of, lines_of, shell
from tests.integration.serve.processes import ServeProcess, environment

CREATE, ROTATE, FORGET, SERVE, SHOW = (lines_of(block) for block in blocks_of("docs/encryption.md", *SHELLS))
SECRET: Final = "the secret sheep"


@pytest.mark.slow
async def test_the_commands_of_the_page_run(addresses: Addresses, url: str, workspace: Path) -> None:
    folder = workspace.parent
    keys = folder / ".loom" / "encryption.keys"
    *create, up = CREATE
    assert up == "loom up"
    shell("\n".join(create), folder, {"LOOM_HOME": str(folder / ".loom"), "HOME": str(folder)})
    assert keys.stat().st_mode & 0o777 == 0o600
    async with harness(addresses, workspace, [text(SECRET)], database_url=url, encryption_keys=keys) as (loom, _):
        run_id = await loom.start(tenant="acme")
        await loom.client.result(run_id)

        async def is_listed_as_over() -> bool:
            over = f"WorkflowId = '{run_id}' AND ExecutionStatus = 'Completed'"
            return (await loom.client.temporal.count_workflows(over)).count == 1

        await eventually(is_listed_as_over)
    env = environment(loom.settings) | {"HOME": str(folder), "LOOM_ENCRYPTION_KEYS": str(keys)}

    listed = shell("\n".join(ROTATE), folder, env)
    assert re.findall(r"(encrypts|decrypts|encrypted with) ?", listed) == ["encrypts", "decrypts", "encrypted with"]
    newest = listed.splitlines()[1].split()[0]
    assert f"encrypted with {newest}" in listed

    shutil.copy(keys, folder / "loom.keys")
    async with served(
        folder, {name: value for name, value in env.items() if name != "LOOM_ENCRYPTION_KEYS"}
    ) as address:
        token = shell("loom tokens add ann --role viewer", folder, env).split()[0]
        here = {**env, "TOKEN": token}
        show = "\n".join(SHOW).replace("RUN", run_id).replace("http://127.0.0.1:8000", address)
        assert SECRET in shell(show, folder, here)
        assert SECRET not in shell(show.partition("--codec-endpoint")[0], folder, here)

    assert "Make all data of the tenant acme unreadable" in shell("\n".join(FORGET), folder, env, says="y\n")
    assert "forgotten at" in shell("loom keys list", folder, env)


@asynccontextmanager
async def served(folder: Path, env: dict[str, str]) -> AsyncIterator[str]:
    """The page's service on a free port, with the settings that the page exports for it."""
    exports, up, serve = SERVE
    assert (up, serve.endswith("loom serve")) == ("loom up --detach", True)
    command = f"{exports}\n{serve.replace('loom serve', f'exec {sys.executable} -P -m loom serve --port 0')}"
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(["bash", "-ec", command], cwd=folder, env=env, stdout=log, stderr=log)
    try:
        yield await ServeProcess(process, folder / "serve.log").url()
    finally:
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 0, (folder / "serve.log").read_text()
