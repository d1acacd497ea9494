"""Prompt a person at the keyboard to approve, edit or deny a call, or to answer a question or an MCP server's form."""

import asyncio
import json
import os
import re
import shlex
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias

from rich.console import RenderableType
from rich.text import Text

from loom.cli.arguments import read_object
from loom.cli.output import console, one_line, visible
from loom.cli.pager import pager_command, pager_environment
from loom.cli.watch import panels
from loom.cli.watch.form_fields import FormField, form_fields
from loom.cli.watch.keyboard import Keyboard
from loom.cli.watch.pending_approvals import Decision, PendingQuestion
from loom.domain.core.errors import BadRequest
from loom.pending_approvals import PendingApproval

CHOICES: Final = {"y": "once", "r": "for the run", "e": "edit", "p": "page", "n": "no"}
FORM_CHOICES: Final = {"y": "fill in", "n": "decline"}
URL_CHOICES: Final = {"y": "done", "n": "decline"}
EDITED_AS_FILES: Final = {"write_file": "content", "edit_file": "new_string"}
"""The argument that an editor opens as a file of its own, by tool. For other tools, it opens all arguments as JSON."""

WorkspaceOf: TypeAlias = Callable[[str], Awaitable[str]]
"""Returns a run's folder on its worker's machine, or an empty string."""


async def _unknown(_run_id: str) -> str:
    return ""


class PromptScreen(Protocol):
    """Where a prompter shows what it asks."""

    def show(self, shown: RenderableType) -> None:
        """Print content above the prompt."""

    def prompt(self, shown: RenderableType | None) -> None:
        """Show a prompt, or remove it if `shown` is None."""

    def say(self, text: str) -> None:
        """Print a message from the command itself."""

    def stopped(self) -> AbstractContextManager[None]:
        """Stop drawing while another program uses the terminal."""
        ...


class Prompter:
    """Shows pending approvals and questions to a person and reads the answers."""

    def __init__(
        self, screen: PromptScreen, keyboard: Keyboard, run_id: str, workspace_of: WorkspaceOf = _unknown
    ) -> None:
        """With `workspace_of`, calls that change a file are shown with their changes."""
        self._screen = screen
        self._keyboard = keyboard
        self._run_id = run_id
        self._workspace_of = workspace_of

    async def answer(self, ask: PendingApproval) -> Decision:
        """Prompt until the person decides. The caller cancels the prompt if somebody else decides first."""
        while True:
            if isinstance(answer := await self.decision(ask), Decision):
                return answer

    async def decision(self, ask: PendingApproval, more: Mapping[str, str] = MappingProxyType({})) -> Decision | str:
        """Show a call and prompt until the person decides or presses a key of `more`, which maps keys to meanings."""
        change = await self._change(ask)
        self._screen.show(panels.approval(ask, self._run_id, boxed=True, hint=False, change=change))
        choices = {**_choices(ask, change), **more}
        try:
            while True:
                await self._keyboard.pause()
                self._screen.prompt(_question(ask, choices))
                key = await self._keyboard.choice("".join(choices))
                if key == "p":
                    await self._paged(panels.approval_in_full(ask, change))
                    continue
                answer = key if key in more else await self._chosen(ask, key)
                if answer is not None:
                    return answer
        finally:
            self._screen.prompt(None)

    async def reply(self, question: PendingQuestion) -> str:
        """Read until the person enters an answer. The question itself is displayed when its event arrives."""
        while True:
            if text := await self.text(f"{one_line(question.text, 60)} (Enter sends) "):
                return text

    async def text(self, label: str) -> str:
        """Read a line. Return an empty string if the person enters nothing or presses Esc."""
        await self._keyboard.pause()
        try:
            return (await self._typed(label) or "").strip()
        finally:
            self._screen.prompt(None)

    async def _chosen(self, ask: PendingApproval, key: str) -> Decision | None:
        match key:
            case "y" if ask.schema is not None:
                return await self._filled_in(form_fields(ask.schema))
            case "y":
                return Decision(approved=True)
            case "r":
                return Decision(approved=True, for_run=True)
            case "e" if ask.is_cut:
                self._screen.say(
                    f"the arguments are truncated here; edit them at the sub-agent's own run: {ask.made_by}"
                )
                return None
            case "e":
                arguments = await self._edited(ask)
                return None if arguments is None else Decision(approved=True, arguments=arguments)
            case _:
                reason = await self._typed("reason? (Enter sends, Esc goes back) ")
                return None if reason is None else Decision(approved=False, reason=reason.strip())

    async def _filled_in(self, fields: tuple[FormField, ...]) -> Decision | None:
        """Ask for each field of a form until its value is valid. Return None if the person goes back."""
        values: dict[str, Any] = {}
        for field in fields:
            text = field.prefilled
            while True:
                label = (
                    f"{visible(field.name)} ({visible(field.described)}): " if field.described else f"{field.name}: "
                )
                typed = await self._typed(label, text)
                if typed is None:
                    return None
                try:
                    value = field.read(typed)
                except BadRequest as error:
                    self._screen.say(error.message)
                    text = typed
                    continue
                if value is not None:
                    values[field.name] = value
                break
        return Decision(approved=True, arguments=values)

    async def _edited(self, ask: PendingApproval) -> dict[str, Any] | None:
        """Return the edited arguments, or None if the person cancels or changes nothing."""
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
        if not editor:
            return await self._edited_here(ask)
        field = EDITED_AS_FILES.get(ask.tool, "")
        text = ask.arguments.get(field)
        if isinstance(text, str):
            changed = await self._in_editor(editor, text, PurePath(str(ask.arguments.get("path", ""))).name)
            return None if changed is None else {**ask.arguments, field: changed}
        changed = await self._in_editor(editor, _json(ask, indent=2) + "\n", "arguments.json")
        return None if changed is None else self._read_arguments(changed)

    async def _edited_here(self, ask: PendingApproval) -> dict[str, Any] | None:
        text = _json(ask)
        while (changed := await self._typed("arguments: ", text)) is not None and changed.strip():
            if (arguments := self._read_arguments(changed)) is not None:
                return arguments
            text = changed
        return None

    def _read_arguments(self, text: str) -> dict[str, Any] | None:
        try:
            return read_object(text, "arguments")
        except BadRequest as error:
            self._screen.say(error.message)
            return None

    async def _typed(self, label: str, text: str = "") -> str | None:
        return await self._keyboard.line(lambda line, cursor: self._screen.prompt(_line(label, line, cursor)), text)

    async def _in_editor(self, editor: str, text: str, name: str) -> str | None:
        """Return the text that the person has saved, or None if it is the same or the editor fails."""
        with tempfile.TemporaryDirectory(prefix="loom-") as folder:
            # Only the end of the name matters to an editor, and only what is harmless in a name is kept of it.
            file = Path(folder) / f"edit{''.join(re.findall(r'[.][A-Za-z0-9]+$', name))}"
            file.write_bytes(text.encode("utf-8", "replace"))
            code = await self._use_terminal(editor, str(file))
            if code is None:
                return None
            try:
                changed = file.read_bytes().decode("utf-8", "replace")
            except OSError as error:
                self._screen.say(f"{editor} left no file to read: {error.strerror}")
                return None
        if code != 0:
            self._screen.say(f"{editor} ended with code {code}; nothing was changed")
            return None
        if changed == text:
            self._screen.say("nothing was changed")
            return None
        return changed

    async def _paged(self, shown: RenderableType) -> None:
        out = console()
        with out.capture() as captured:
            out.print(shown)
        with tempfile.TemporaryFile() as file:
            file.write(captured.get().encode("utf-8", "replace"))
            file.seek(0)
            await self._use_terminal(shlex.join(pager_command()), stdin=file, env={**pager_environment(), "LESS": "R"})

    async def _use_terminal(self, command: str, *arguments: str, **options: Any) -> int | None:
        """Let another program use the terminal until it ends. Return its exit code, or None if it can't be started."""
        with self._screen.stopped(), self._keyboard.lent():
            try:
                process = await asyncio.create_subprocess_exec(*shlex.split(command), *arguments, **options)
            except (OSError, ValueError) as error:
                self._screen.say(f"cannot start {command}: {error}")
                return None
            try:
                return await process.wait()
            except asyncio.CancelledError:  # somebody else has decided, but the terminal isn't free yet
                await process.wait()
                raise

    async def _change(self, ask: PendingApproval) -> str | None:
        """Return what the call would change in a file, if that is known here."""
        if ask.is_cut or ask.tool not in EDITED_AS_FILES:
            return None
        from loom.file_changes import change_of  # noqa: PLC0415 - only for calls that change a file

        workspace = await self._workspace_of(ask.made_by or self._run_id)
        return await asyncio.to_thread(change_of, ask.tool, ask.arguments, workspace)


def _json(ask: PendingApproval, indent: int | None = None) -> str:
    return json.dumps(ask.arguments, ensure_ascii=False, indent=indent)


def _choices(ask: PendingApproval, change: str | None) -> dict[str, str]:
    """Return the keys for this approval, or for what an MCP server asks.

    `r` is omitted if no rule can allow the call for the rest of the run, and `p` if the panel shows everything.
    """
    if ask.schema is not None:
        return FORM_CHOICES
    if ask.url:
        return URL_CHOICES
    useless = {*("r" if not ask.for_run else ""), *("p" if not panels.is_cut(ask, change) else "")}
    return {key: meaning for key, meaning in CHOICES.items() if key not in useless}


def _question(ask: PendingApproval, choices: Mapping[str, str]) -> Text:
    shown = [part for key, meaning in choices.items() for part in ((f"[{key}]", "bold yellow"), f" {meaning} ")]
    verb = "answer " if ask.schema is not None or ask.url else "approve "
    return Text.assemble((verb, "yellow"), (visible(ask.tool), "bold yellow"), ("?  ", "yellow"), *shown)


def _line(label: str, text: str, cursor: int) -> Text:
    under = text[cursor] if cursor < len(text) else " "
    return Text.assemble(
        (label, "yellow"), visible(text[:cursor]), (visible(under), "reverse"), visible(text[cursor + 1 :])
    )
