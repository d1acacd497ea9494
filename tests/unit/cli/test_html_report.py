"""The HTML report shows what models, tools and people wrote as text, whatever it is, and loads nothing."""

import re
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from typing import Final

from hypothesis import example, given, settings
from hypothesis import strategies as some

from loom.cli.output import plain
from loom.cli.report_html import html_report
from loom.domain.core.tasks import Action
from loom.domain.history.run_report import RunReport, run_report
from tests.unit.cli.test_cli_screen import BEGIN, task

TAGS: Final = set(
    "html head meta title style body h1 h2 p div span i b ul li table tr th td".split()  # noqa: SIM905 - one line
)
ATTRIBUTES: Final = {"lang", "charset", "name", "content", "http-equiv", "class", "style", "title"}
LENGTHS: Final = re.compile(r"(left:-?[\d.]+%;)?width:[\d.]+%")
MARKUP: Final = (
    "<script>alert(1)</script>", "</title>", "</style>", "<img src=x onerror=alert(1)>", '" onmouseover="alert(1)',
    "' onclick='", "<!--", "]]>", "&lt;", "&#60;", "javascript:", "url(http://evil.example)", "{title}", "<", ">", '"',
)  # fmt: skip
HOSTILE: Final = some.lists(some.sampled_from(MARKUP) | some.text(max_size=8), max_size=6).map("".join)


class Page(HTMLParser):
    """A parsed page: its elements and all its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


def report_of(evil: str) -> RunReport:
    """A report with this text wherever a model, a tool or a person can put it."""
    child = f"r/{evil}"
    told = [
        task(Action.START, task=evil, agent=evil, model=evil, workspace=evil),
        task(Action.TURN, to=1),
        task(Action.MODEL_CALL, turn=1, model=evil, input_tokens=1, output_tokens=1, cost=0.1, ms=1, error=evil),
        task(Action.EXECUTE, call_id="c0", agent=evil, description=evil, child_run_id=child),
        task(Action.TOOL_CALL, turn=1, call_id="c1", tool=evil, summary=evil, arguments={evil: evil}),
        task(Action.APPROVAL_REQUESTED, call_id="c2", tool=evil),
        task(Action.APPROVAL_DECIDED, call_id="c2", by=evil),
        task(Action.MESSAGE, call_id="c3", text=evil),
        task(Action.MESSAGE, text=evil, by=evil),
        task(Action.PARKED, error=evil),
        task(Action.TOOL_RESULT, turn=1, status="error", call_id="c1", tool=evil, result={"content": evil}),
        task(Action.ERROR, status=evil, result={"status": evil, "error": {"type": evil, "message": evil}}),
    ]
    later = [replace(each, created_at=BEGIN + timedelta(seconds=place)) for place, each in enumerate(told)]
    below = replace(run_report(later, run_id="r", now=BEGIN), run_id=child)
    return replace(run_report(later, run_id="r", now=BEGIN, sub_agents={child: below}), run_id=evil)


@settings(max_examples=15)
@given(evil=HOSTILE)
@example(evil="".join(MARKUP))
def test_the_page_has_only_its_own_elements(evil: str) -> None:
    page = Page(html_report(report_of(evil)))

    assert page.tags <= TAGS
    assert {name for name, _ in page.attributes} <= ATTRIBUTES
    assert all(LENGTHS.fullmatch(value) for name, value in page.attributes if name == "style")
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes
    assert plain(evil) in "".join(page.texts)
