"""The program of docs/chat.md runs, and docs/chat.md names what there is."""

import re
from pathlib import Path
from typing import get_args

from loom.domain.run.chat import Handling, WhenBusy
from tests.integration.workflows.conftest import Working
from tests.integration.workflows.test_chat import echo

DOCS = (Path(__file__).parents[3] / "docs" / "chat.md").read_text(encoding="utf-8")


async def test_the_program_of_the_docs_talks(working: Working) -> None:
    loom, _ = await working(echo)
    (program,) = re.findall(r"^```python\n(.*?)^```$", DOCS, re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(program, "docs/chat.md", "exec"), names)
    talk = names["talk"]
    assert callable(talk)

    assert await talk(loom.client) == "you said: My name is Ann. / you said: What is my name?"
    loom.started.append("chat-trip")


def test_the_docs_name_every_way_of_handling_a_message() -> None:
    assert all(f"`{name}`" in DOCS for name in (*get_args(Handling), *get_args(WhenBusy)))
