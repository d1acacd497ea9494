"""Render the Markdown of an answer at a terminal. Import this module only when there is one to render."""

from typing import ClassVar, Final

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.padding import Padding
from rich.text import Text
from rich.theme import Theme

from loom.cli.output import plain

_THEME: Final = Theme(
    {
        "markdown.code": "cyan",
        "markdown.h1": "bold underline",
        "markdown.h2": "bold",
        "markdown.h3": "bold",
        "markdown.h4": "italic",
        "markdown.block_quote": "italic",
        "markdown.list": "none",
        "markdown.item.number": "bold",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
        "markdown.link": "cyan",
        "markdown.link_url": "cyan underline",
    }
)
"""Styles that can be read on light and on dark backgrounds."""


class _LeftHeading(Heading):
    LEVEL_ALIGN: ClassVar[dict[str, JustifyMethod]] = dict.fromkeys(Heading.LEVEL_ALIGN, "left")


class _Code(CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Padding(Text(str(self.text).rstrip("\n"), style="cyan"), (0, 0, 0, 2))


class Answer(Markdown):
    """A model's Markdown.

    HTML is shown as it is, because a terminal would lose it. The target of a link is shown, because a person must see
    where it leads. A line that the model ends is a line.
    """

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "fence": _Code,
        "code_block": _Code,
    }

    def __init__(self, text: str) -> None:
        super().__init__("", hyperlinks=False)
        self.markup = plain(text).strip()
        parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable("image")
        self.parsed = parser.parse(self.markup)
        for token in self.parsed:
            _keep_lines(token)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """See base class."""
        with console.use_theme(_THEME):
            yield from super().__rich_console__(console, options)


def _keep_lines(token: Token) -> None:
    for child in token.children or ():
        if child.type == "softbreak":
            child.type = "hardbreak"
