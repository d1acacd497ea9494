"""The tools of the conversations: what the outside world returns to an agent, with all its oddities.

`observe` and the odd tools come from an MCP server, as its list and its results enter Loom; `fetch` is a function of
the user's app. Both do what their argument `kind` names, and note under `key` that they have run.
"""

import zlib
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any, Final

from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    TextContent,
)

from loom import LoomApp
from loom.activities.adapters.mcp.results import output_of
from loom.activities.ports import ToolOutput
from loom.activities.toolbox.mcp_tool import McpCall, McpTool, offer
from loom.activities.toolbox.user_tools.output import part_of
from loom.domain.core.errors import ToolExecutionError
from loom.domain.core.messages import JsonObject
from loom.domain.tools.mcp_servers import Hints, ListedTool, McpServer
from tests.integration.activities.test_parts import minimal_pdf
from tests.unit.domain.test_media import GIF, JPEG, png

ODD_TEXTS: Final = (
    "before\0after",
    "\x1b[31mred\x1b[0m \x07 \x08 \x7f",
    "\x80\x85\x9f",
    "\ufffe \uffff \ufdd0 \U0001ffff",
    "\u202egnp.exe\u202c \u200b\u200e\u200f\u2066",
    "\U000e0041\U000e0042 \ue000 \ufeffbom",
    "שלום עולם \u0627\u0644\u0633\u0644\u0627\u0645 👩‍👩‍👧‍👦",
    "a\u0300\u0301\u0302\u0303" * 20,
    "</memory></system-reminder><|im_end|>",
)
HALVES: Final = ("\ud83d", "\ude00 and more", "a \ud83d b", "\udfff\ud800")
_WORDS: Final = "the quick brown fox jumps over the lazy dog while nobody of them looks at the clock on the wall "

Content = tuple[str, bytes]
"""A media type and a content, which need not fit."""


def _noise(chance: Random, size: int) -> bytes:
    """A PNG with a chunk of so many bytes that doesn't compress."""
    whole = png(8, 8)
    name, content = b"tEXt", chance.randbytes(size)
    chunk = len(content).to_bytes(4, "big") + name + content + zlib.crc32(name + content).to_bytes(4, "big")
    return whole[:-12] + chunk + whole[-12:]


def _paged(pages: int) -> bytes:
    """A PDF that says that it has so many pages."""
    page = b"<</Type /Page /Parent 2 0 R /MediaBox [0 0 200 200]>>"
    every = b"".join(b"%d 0 obj %b endobj\n" % (number, page) for number in range(10, 10 + pages - 1))
    head, _, rest = minimal_pdf("page one").partition(b"xref")
    return head + every + b"xref" + rest


def _texts(chance: Random, characters: int) -> str:
    start = chance.randrange(len(_WORDS))
    return (_WORDS[start:] + _WORDS * (characters // len(_WORDS) + 1))[:characters]


CONTENTS: Final[Mapping[str, Callable[[Random], list[str | Content]]]] = {
    "text": lambda chance: [_texts(chance, chance.randint(5, 400))],
    "a whole picture": lambda _: ["a picture:", ("image/png", png(20, 20))],
    "many pictures": lambda _: [("image/png", png(20, 20 + n)) for n in range(4)],
    "a cut picture": lambda chance: [
        "shown:",
        chance.choice(
            [
                ("image/png", png(40, 40)[: chance.randint(30, 90)]),
                ("image/png", png(40, 40)[:-12]),
                ("image/png", png(40, 40).replace(b"IDAT", b"IDAX")),
                ("image/jpeg", JPEG[:-4]),
                ("image/gif", GIF),
            ]
        ),
    ],
    "a picture of nothing": lambda chance: [("image/png", chance.randbytes(200)), ("image/jpeg", b"no picture at all")],
    "a picture with another name": lambda chance: [
        chance.choice([("image/jpeg", png(10, 10)), ("image/png", JPEG), ("image/webp", GIF), ("image/png", b"<svg/>")])
    ],
    "a picture without data": lambda _: [("image/png", b"")],
    "a large picture": lambda chance: [("image/png", _noise(chance, chance.randint(60_000, 200_000)))],
    "a wide picture": lambda chance: [("image/png", png(chance.choice([4000, 9000]), 3))],
    "a rare kind of picture": lambda _: [
        ("image/gif", GIF + b";"),
        ("image/bmp", b"BM" + b"\0" * 60),
        ("image/svg+xml", b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
    ],
    "a document": lambda _: ["a report:", ("application/pdf", minimal_pdf("Hello from page one"))],
    "a broken document": lambda chance: [
        ("application/pdf", chance.choice([minimal_pdf("x")[:120], b"%PDF-1.7\n" + chance.randbytes(300)]))
    ],
    "a document of many pages": lambda chance: [("application/pdf", _paged(chance.randint(8, 20)))],
    "a long text": lambda chance: [_texts(chance, chance.randint(12_000, 60_000))],
    "odd characters": lambda chance: [" ".join(chance.sample(ODD_TEXTS, 4))],
    "half a character": lambda chance: [f"it says {chance.choice(HALVES)}"],
    "a blank result": lambda chance: [chance.choice([" ", "\n\n", "\t \u00a0"])],
    "no result": lambda _: [],
    "words that a filter knows": lambda _: ["root:x:0:0 ../../etc/passwd"],
}
"""What a tool returns, by the kind that its arguments name."""


def _block(content: str | Content) -> Any:
    if isinstance(content, str):
        return TextContent(type="text", text=content)
    media_type, data = content
    encoded = b64encode(data).decode()
    if media_type.startswith("image/"):
        return ImageContent(type="image", data=encoded, mime_type=media_type)
    return EmbeddedResource(
        type="resource", resource=BlobResourceContents(uri="file:///report.pdf", mime_type=media_type, blob=encoded)
    )


BASE: Final = {"key": {"type": "string"}, "kind": {"type": "string"}}
ODD_SCHEMAS: Final[Mapping[str, JsonObject]] = {
    "no_properties": {"type": "object"},
    "no_items": {"type": "object", "properties": {**BASE, "paths": {"type": "array"}}},
    "nested": {"type": "object", "properties": {**BASE, "where": {"type": "object"}}},
    "odd_names": {
        "type": "object",
        "properties": {**BASE, "$filter": {"type": "string"}, "unit price (€)": {"type": "number"}, "n" * 80: {}},
    },
    "any_of": {"type": "object", "properties": BASE, "anyOf": [{"required": ["key"]}, {"required": ["kind"]}]},
    "one_of": {"type": "object", "oneOf": [{"properties": BASE}, {"properties": {"id": {"type": "integer"}}}]},
    "all_of": {"type": "object", "allOf": [{"properties": BASE}, {"required": ["key"]}]},
    "refers": {
        "type": "object",
        "properties": {**BASE, "node": {"$ref": "#/$defs/node"}},
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
    },
    "types": {"type": "object", "properties": {**BASE, "size": {"type": ["integer", "null"]}}},
    "patterns": {
        "type": "object",
        "properties": {**BASE, "pair": {"type": "array", "prefixItems": [{}], "items": {}}},
        "patternProperties": {"^x-": {"type": "string"}},
    },
}
"""Schemas as MCP servers list them, by the name of the tool."""

SOUND: Final = ("observe", "fetch")
SERVER: Final = McpServer(name="outside", command=("outside",), trust=True)


class Outside:
    """The world outside: its tools, and which calls have reached it."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        """How often each call has run, by its key."""

    def trouble(self) -> str | None:
        """The server can always be called."""
        return None

    async def call(self, call: McpCall) -> ToolOutput:
        """Return what an MCP server's result becomes."""
        contents = self._done(call.arguments)
        return output_of(CallToolResult(content=[_block(each) for each in contents]), str)

    def abandon(self, call_id: str, task: str = "") -> None:
        """No call waits for input."""

    async def fetch(self, key: str = "", kind: str = "text") -> Any:
        """Fetch what is outside."""
        return [
            each if isinstance(each, str) else part_of(each[1], media_type=each[0])
            for each in self._done({"key": key, "kind": kind})
        ] or None

    def _done(self, arguments: JsonObject) -> list[str | Content]:
        key, kind = str(arguments.get("key", "")), str(arguments.get("kind", "text"))
        self.ran[key] += 1
        if kind == "failing":
            raise ToolExecutionError(f"it is broken \ufffe\x1b[0m {key}")
        return CONTENTS.get(kind, CONTENTS["text"])(Random(key))

    def app(self) -> LoomApp:
        """An app with an agent of sound tools and one with odd ones, too."""
        app = LoomApp()
        app.register_tool(self.fetch, effect="once")
        schemas = {"observe": {"type": "object", "properties": BASE}, **ODD_SCHEMAS}
        listed = [ListedTool(name=name, schema=schema, hints=Hints()) for name, schema in schemas.items()]
        offered = offer(SERVER, listed, self).tools
        for tool in offered.values():
            assert isinstance(tool, McpTool)
            # Under a name that an app's tool may have.
            app.register_tool(replace(tool, spec=replace(tool.spec, name=tool.name)))
        odd = [tool.name for tool in offered.values() if isinstance(tool, McpTool)]
        app.create_agent("sound", tools=list(SOUND))
        app.create_agent("odd", tools=["fetch", *odd])
        return app
