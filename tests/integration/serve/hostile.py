"""Texts that try to run a script, to fetch something, or to look like something else."""

import random
from collections.abc import Iterator
from itertools import chain, cycle, product
from typing import Any, Final


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


TAGS: Final = _words(
    "script img svg iframe object embed video audio source track link style meta base form input button textarea select"
    " details marquee body frameset math template noscript xmp plaintext a area map portal table td div span p animate"
    " set image foreignObject use mglyph mtext title html head x-own"
)
HANDLERS: Final = _words(
    "onerror onload onclick onfocus onmouseover ontoggle onanimationstart onpointerenter onbegin onstart onscroll"
    " onbeforetoggle onhashchange onauxclick onwheel"
)
ADDRESSED: Final = _words(
    "src href xlink:href srcset action formaction background poster data srcdoc ping cite content code codebase"
    " dynsrc lowsrc manifest icon"
)
PLAIN: Final = _words(
    'style="background:url(//evil.test/s);position:fixed;inset:0" id=main name=body class=alerts autofocus tabindex=1'
    " contenteditable http-equiv=refresh is=x-own slot=x popover=auto"
)
ADDRESSES: Final = (
    "javascript:hit()",
    "JaVaScRiPt:hit()",
    "java\tscript:hit()",
    "java\nscript:hit()",
    "\x01javascript:hit()",
    " javascript:hit()",
    "&#106;avascript:hit()",
    "&#x6A;avascript&colon;hit()",
    "javascript&#58;hit()",
    "javascript://evil.test/%0ahit()",
    "data:text/html,<script>hit()</script>",
    "data:text/html;base64,PHNjcmlwdD5oaXQoKTwvc2NyaXB0Pg==",
    "data:image/svg+xml,<svg onload=hit()>",
    "vbscript:hit()",
    "blob:http://loom.test/1",
    "file:///etc/passwd",
    "intent://evil.test",
    "http://evil.test/a.png",
    "https://evil.test/a.js",
    "//evil.test/a",
    "/v1/runs/r/abort",
    "#/start",
    "mailto:a@evil.test?body=x",
    "http://good.test@evil.test/",
    "http://еxample.test/\u202e",
)
MARKDOWN: Final = (
    "[text]({0})",
    "[text](<{0}>)",
    "![text]({0})",
    '![text]({0} "title")',
    "[![text]({0})]({0})",
    "[text][1]\n\n[1]: {0}",
    "<{0}>",
    "{0}",
    "# [text]({0})\n## ![text]({0})",
    "> - [x] [text]({0})\n> - [ ] ![text]({0})",
    "| a | b |\n|---|---|\n| [text]({0}) | ![text]({0}) |",
    "```{0}\n<img src={0} onerror=hit()>\n```",
    "`<img src={0}>` <img src={0}>",
    "[https://good.test]({0})",
    "[text\u202e]({0})",
    "<a href='{0}'>text</a>",
    "<base href='{0}'><a href=x>text</a>",
)
KNOWN: Final = (
    '<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=hit()&gt;">',
    '<svg></p><style><a id="</style><img src=1 onerror=hit()>">',
    '<noscript><p title="</noscript><img src=x onerror=hit()>">',
    "<form><math><mtext></form><form><mglyph><style></math><img src onerror=hit()>",
    '<svg><animate onbegin=hit() attributeName=x dur=1s><set attributeName=href to="javascript:hit()">',
    "<!--><img src=x onerror=hit()>-->",
    "<![CDATA[<img src=x onerror=hit()>]]>",
    "</textarea></title></style></script><script>hit()</script>",
    "<img src=x onerror=hit()//",
    "<<script>hit();//<</script>",
    "<scr<script>ipt>hit()</scr</script>ipt>",
    "<a href='x' onclick=hit()>&#x202e;&#8203;&#0;</a>",
    "<form id=main><input name=attributes><input name=innerHTML><input name=firstChild></form>",
    '<div id=body name=cookie></div><img name=getElementById id="alerts">',
    "${hit()} {{hit()}} <%= hit() %> #{hit()} `${hit()}`",
    "</script><svg/onload=hit()>",
    "__proto__",
    "constructor",
    "\x00\x07\x1b]8;;http://evil.test\x07click\x1b]8;;\x07 \u202etxt.exe\u200b\ufeff\U000e0041",
    "a" * 5000,
    "[" * 500 + "x" + "](javascript:hit())" * 500,
    "*" * 800 + "_" * 800,
    "> " * 300 + "deep",
)


def hostile_texts(number: int, seed: int = 7) -> list[str]:
    """Return texts. In 200 of them, each tag, attribute, address and form is used at least once."""
    chosen = random.Random(seed)
    makers = cycle((_element(chosen), _markdown(chosen)))
    return [*KNOWN, *(next(next(makers)) for _ in range(number - len(KNOWN)))]


def _element(chosen: random.Random) -> Iterator[str]:
    attributes = [
        *(f"{name}=hit()" for name in HANDLERS),
        *(f'{name}="{address}"' for name, address in zip(ADDRESSED, cycle(ADDRESSES), strict=False)),
        *PLAIN,
    ]
    tags, each = _shuffled(TAGS, chosen), _shuffled(attributes, chosen)
    while True:
        tag = next(tags)
        more = " ".join(chosen.sample(attributes, 3))
        yield f"<{tag} {next(each)} {more}>hit()</{tag}>{chosen.choice(('', '<p>', '-->', chr(10) * 2))}"


def _markdown(chosen: random.Random) -> Iterator[str]:
    pairs = [*product(MARKDOWN, ADDRESSES)]
    chosen.shuffle(pairs)
    firsts = zip(chain(MARKDOWN, chosen.choices(MARKDOWN, k=len(ADDRESSES))), chain(*[ADDRESSES] * 2), strict=False)
    for form, address in chain(firsts, cycle(pairs)):
        yield form.format(address)


def _shuffled(values: Any, chosen: random.Random) -> Iterator[str]:
    while True:
        yield from chosen.sample(values, len(values))
