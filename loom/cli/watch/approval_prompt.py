"""Prompt a person at the keyboard to approve, edit or deny a call, or to answer a question."""

import asyncio
import json
import os
import shlex
import tempfile
from pathlib import Path
from typing import Any, Final

from rich.text import Text

from loom.cli.arguments import read_object
from loom.cli.output import one_line, visible
from loom.cli.watch import panels
from loom.cli.watch.keyboard import Keyboard
from loom.cli.watch.pending_approvals import Decision, PendingApproval, PendingQuestion
from loom.cli.watch.screen import Screen
from loom.domain.core.errors import BadRequest

CHOICES: Final = {"y": "once", "r": "for the run", "e": "edit", "n": "no"}


class Prompter:
    """Shows pending approvals and questions to a person and reads the answers."""

    def __init__(self, screen: Screen, keyboard: Keyboard, run_id: str) -> None:
        self._screen = screen
        self._keyboard = keyboard
        self._run_id = run_id

    async def answer(self, ask: PendingApproval) -> Decision:
        """Prompt until the person decides. The caller cancels the prompt if somebody else decides first."""
        self._screen.show(panels.approval(ask, self._run_id, boxed=True, hint=False))
        self._keyboard.forget()
        try:
            while True:
                self._screen.prompt(_question(ask))
                answer = await self._chosen(ask, await self._keyboard.choice("".join(_choices(ask))))
                if answer is not None:
                    return answer
        finally:
            self._screen.prompt(None)

    async def reply(self, question: PendingQuestion) -> str:
        """Read until the person enters an answer. The question itself is displayed when its event arrives."""
        self._keyboard.forget()
        try:
            while True:
                text = await self._typed(f"{one_line(question.text, 60)} (Enter sends) ")
                if text is not None and text.strip():
                    return text.strip()
        finally:
            self._screen.prompt(None)

    async def _chosen(self, ask: PendingApproval, key: str) -> Decision | None:
        match key:
            case "y":
                return Decision(approved=True)
            case "r":
                return Decision(approved=True, for_run=True)
            case "e" if ask.cut:
                self._screen.say(
                    f"the arguments are truncated here; edit them at the sub-agent's own run: {ask.run_id}"
                )
                return None
            case "e":
                arguments = await self._edited(ask)
                return None if arguments is None else Decision(approved=True, arguments=arguments)
            case _:
                reason = await self._typed("reason? (Enter sends, Esc goes back) ")
                return None if reason is None else Decision(approved=False, reason=reason.strip())

    async def _edited(self, ask: PendingApproval) -> dict[str, Any] | None:
        """Return the edited arguments, or None if the person cancels."""
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
        text = json.dumps(ask.arguments, ensure_ascii=False, indent=2 if editor else None)
        while True:
            changed = await (self._in_editor(editor, text) if editor else self._typed("arguments: ", text))
            if changed is None or not changed.strip():
                return None
            try:
                return read_object(changed, "arguments")
            except BadRequest as error:
                self._screen.say(error.message)
                text = changed
            if editor:
                return None  # return to the prompt, so that a broken editor isn't started repeatedly

    async def _typed(self, label: str, text: str = "") -> str | None:
        return await self._keyboard.line(lambda line, cursor: self._screen.prompt(_line(label, line, cursor)), text)

    async def _in_editor(self, editor: str, text: str) -> str | None:
        with tempfile.TemporaryDirectory(prefix="loom-") as folder:
            file = Path(folder) / "arguments.json"
            file.write_text(text + "\n", encoding="utf-8")
            with self._screen.stopped(), self._keyboard.lent():
                try:
                    process = await asyncio.create_subprocess_exec(*shlex.split(editor), str(file))
                    code = await process.wait()
                except (OSError, ValueError) as error:
                    self._screen.say(f"cannot start {editor}: {error}")
                    return None
            return file.read_text(encoding="utf-8", errors="replace") if code == 0 else None


def _choices(ask: PendingApproval) -> dict[str, str]:
    """Return the keys for this approval. `r` is omitted if no rule can allow the call for the rest of the run."""
    return {key: meaning for key, meaning in CHOICES.items() if key != "r" or ask.for_run}


def _question(ask: PendingApproval) -> Text:
    shown = [part for key, meaning in _choices(ask).items() for part in ((f"[{key}]", "bold yellow"), f" {meaning}  ")]
    return Text.assemble(("approve ", "yellow"), (visible(ask.tool), "bold yellow"), ("?  ", "yellow"), *shown)


def _line(label: str, text: str, cursor: int) -> Text:
    under = text[cursor] if cursor < len(text) else " "
    return Text.assemble(
        (label, "yellow"), visible(text[:cursor]), (visible(under), "reverse"), visible(text[cursor + 1 :])
    )
