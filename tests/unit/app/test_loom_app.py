"""What a module may register, what is refused and how, and how apps and packages become one registry."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel, Field, FilePath

from examples.tools import shop
from loom import Ask, Deny, LoomApp, Task, ToolCall, ToolContext
from loom.activities.adapters.models.demo.model import DemoModel
from loom.activities.adapters.models.providers import ConfiguredProviders
from loom.activities.adapters.sandbox.bubblewrap import find_sandbox
from loom.activities.ports import Tool
from loom.activities.toolbox.built_in.conversation import done_tool
from loom.activities.toolbox.built_in.shell import Finished
from loom.app.agent_files import read_agent_file
from loom.app.loading import load_app, with_absolute_file
from loom.app.package_preview import described, installation
from loom.app.packages import enabled, installed
from loom.app.registry import Registry, collect, merged
from loom.domain.agents.definitions import AgentDefinition, spec_of, tools_of
from loom.domain.agents.hook_steps import Moment
from loom.domain.agents.inheritance import with_inherited
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import BadRequest, ToolValidationError
from loom.domain.core.tool_calls import Effect, Scope, ToolSpec, Verdict
from tests.commands import forget_modules_of

DONE: dict[str, Tool] = {"done": done_tool()}


class Colour(StrEnum):
    """Doc."""

    RED = "red"


@dataclass
class Point:
    """Doc."""

    x: float
    y: float = 0


class Order(BaseModel):
    """Doc."""

    number: int
    file: Path | None = None


def everything(  # type: ignore[no-untyped-def]
    a: int,
    /,
    b: Annotated[str, Field(max_length=5, description="Its own words")],
    schema: Literal["x", "y"],
    context: ToolContext,
    *,
    _colour: Colour = Colour.RED,
    point: Point | None = None,
    many: list[Path] = [],  # noqa: B006
    old: Optional[int] = 3,  # noqa: UP045
    timeout: float = 1.5,
    untyped=None,
) -> str:
    """Take one of each.

    It is only taken.

    Args:
        a: The first.
        b: Not shown, its own words go first.
        point: Where
            it is.

    Returns:
        Nothing of interest.
    """
    return f"{a}{b}{schema}{context}{_colour}{point}{many}{old}{timeout}{untyped}"


def registered(thing: Any, **options: Any) -> ToolSpec:
    """The spec of a tool in an app of its own."""
    return LoomApp().register_tool(thing, **options).spec


def refused(thing: Any, **options: Any) -> str:
    """Why it is refused."""
    with pytest.raises(BadRequest) as caught:
        registered(thing, **options)
    return caught.value.message


def test_a_schema_comes_from_signature_types_and_docstring() -> None:
    spec = registered(everything)
    assert spec.name == "everything"
    assert spec.description == "Take one of each.\n\nIt is only taken."
    assert spec.parameters == {
        "type": "object",
        "additionalProperties": False,
        "required": ["a", "b", "schema"],
        "properties": {
            "a": {"type": "integer", "description": "The first."},
            "b": {"type": "string", "maxLength": 5, "description": "Its own words"},
            "schema": {"type": "string", "enum": ["x", "y"]},
            "_colour": {"$ref": "#/$defs/Colour", "default": "red"},
            "point": {
                "anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}],
                "default": None,
                "description": "Where it is.",
            },
            "many": {"type": "array", "items": {"type": "string", "format": "path"}, "default": []},
            "old": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": 3},
            "timeout": {"type": "number", "default": 1.5},
            "untyped": {"default": None},
        },
        "$defs": {
            "Colour": {"type": "string", "enum": ["red"], "description": "Doc."},
            "Point": {
                "type": "object",
                "additionalProperties": False,
                "description": "Doc.",
                "properties": {"x": {"type": "number"}, "y": {"type": "number", "default": 0}},
                "required": ["x"],
            },
        },
    }


def numpy_style(word: str, times: int = 2) -> str:
    """Repeat.

    Parameters
    ----------
    word : str
        What.
    times : int
        How often.
    """
    return word * times


def sphinx_style(word: str, times: int = 2) -> str:
    """Repeat.

    :param word: What.
    :param times: How often.
    """
    return word * times


@pytest.mark.parametrize("function", [numpy_style, sphinx_style])
def test_every_style_of_docstring_is_read(function: Callable[..., str]) -> None:
    spec = registered(function)
    said = {name: schema["description"] for name, schema in spec.parameters["properties"].items()}
    assert (spec.description, said) == ("Repeat.", {"word": "What.", "times": "How often."})


def test_what_is_said_beside_the_function_is_in_the_spec() -> None:
    def function() -> None:
        """Do it."""

    assert registered(function) == ToolSpec(
        name="function",
        description="Do it.",
        parameters={"type": "object", "additionalProperties": False, "properties": {}},
        declared=Verdict.ASK,
    )
    assert registered(
        function,
        name="other",
        description="Else.",
        effect="read",
        timeout=5,
        parallel=False,
        ephemeral=True,
        queue="gpu",
        permission="deny",
        scope="system",
    ) == ToolSpec(
        name="other",
        description="Else.",
        parameters={"type": "object", "additionalProperties": False, "properties": {}},
        effect=Effect.READ,
        timeout=5,
        ephemeral=3,
        queue="gpu",
        declared=Verdict.DENY,
        scope=Scope.SYSTEM,
    )
    assert registered(function, effect="read").parallel
    assert registered(function, effect="read").declared is Verdict.ALLOW


def test_a_decorated_function_stays_what_it_was() -> None:
    app = LoomApp()
    assert app.tool(numpy_style) is numpy_style
    assert app.tool(name="again", effect="read")(numpy_style)("a") == "aa"
    assert [spec.name for spec in app.list_tools()] == ["again", "numpy_style"]
    assert app.get_tool("again").spec.effect is Effect.READ
    with pytest.raises(BadRequest, match="there is no tool 'agian': did you mean 'again'"):
        app.get_tool("agian")


def starred(*words: str) -> None:
    """Bad."""


def keyed(**words: str) -> None:
    """Bad."""


def unspeakable(when: Callable[[], int]) -> None:
    """Bad."""


def lost(where: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821
    """Bad."""


def nested(order: Order) -> None:
    """Bad."""


def existing(file: FilePath) -> None:
    """Bad."""


async def asks() -> bool:
    """Bad."""
    return True


@pytest.mark.parametrize(
    ("thing", "options", "says"),
    [
        (starred, {}, "starred .*`\\*words`: name each parameter"),
        (keyed, {}, "`\\*\\*words`"),
        (unspeakable, {}, "parameter `when` has a type that JSON cannot represent"),
        (lost, {}, "its types cannot be read.*Nowhere"),
        (nested, {}, "the paths in `order` cannot be confined to the workspace"),
        (existing, {}, "the paths in `file`"),
        (Point.__repr__, {}, "`self` is the method's object"),
        (lambda: 1, {}, "'<lambda>' cannot be a tool's name: set one with `name=`"),
        (numpy_style, {"name": "a b"}, "'a b' cannot be a tool's name"),
        (numpy_style, {"name": "x" * 65}, "cannot be a tool's name"),
        (numpy_style, {"name": "default"}, "reserved"),
        (numpy_style, {"name": "mcp__x__y"}, "reserved"),
        (numpy_style, {"name": "create_tool"}, "reserved"),
        (numpy_style, {"name": "made__x"}, "reserved"),
        (
            numpy_style,
            {"effect": "reed"},
            "option `effect` must be one of read, idempotent, once; did you mean 'read'?",
        ),
        (numpy_style, {"efect": "read"}, "option `efect`.*the options are name, description, effect"),
        (numpy_style, {"timeout": 0}, "option `timeout`"),
        (numpy_style, {"parallel": True}, 'set effect="read"'),
        (numpy_style, {"quick": True}, 'set effect="read"'),
        (numpy_style, {"effect": "read", "quick": True, "queue": "gpu"}, "leave out `queue`"),
        (numpy_style, {"available": asks}, "`available` must be a plain function"),
        (7, {}, "neither a function nor a tool in class form"),
        (Point, {}, "neither a function nor a tool in class form"),
        (done_tool(), {"effect": "read"}, "already has a spec"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_by_name_with_what_to_do(
    thing: Any, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadRequest, match=says):
        registered(thing, **options)


def test_paths_in_models_are_taken_by_a_tool_that_works_elsewhere() -> None:
    assert registered(nested, scope="system").scope is Scope.SYSTEM


def test_a_bound_method_and_a_partial_are_functions() -> None:
    class Counter:
        def count(self, number: int, step: int = 1) -> int:
            """Count."""
            return number + step

    assert registered(Counter().count).parameters["required"] == ["number"]
    assert list(registered(partial(Counter().count, 1), name="more").parameters["properties"]) == ["step"]


class Asked(BaseModel):
    """Doc."""

    town: str = Field(description="Which")
    schema_: int = Field(1, alias="schema")


class Form:
    """A tool in class form."""

    name = "form"
    description = "Fill it."
    args_schema = Asked
    effect = "idempotent"
    timeout = 7

    def run(self, town: str, schema: int, context) -> str:  # type: ignore[no-untyped-def]
        """Run it."""
        return f"{town}{schema}{context}"


def test_the_class_form_says_everything_by_itself() -> None:
    expected = ToolSpec(
        name="form",
        description="Fill it.",
        parameters={
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "town": {"type": "string", "description": "Which"},
                "schema": {"type": "integer", "default": 1},
            },
            "required": ["town"],
        },
        effect=Effect.IDEMPOTENT,
        timeout=7,
        declared=Verdict.ASK,
    )
    assert registered(Form) == registered(Form()) == expected


def test_a_class_that_only_reads_runs_beside_others() -> None:
    class Reads(Form):
        effect = ""
        is_read_only = True

        def is_concurrency_safe(self) -> bool:
            return False

    spec = registered(Reads)
    assert (spec.effect, spec.parallel, spec.declared) == (Effect.READ, False, Verdict.ALLOW)


def changed(**attributes: Any) -> type:
    """The class form with attributes of its own."""
    return type("Changed", (Form,), attributes)


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (changed(args_schema=None), "has no `args_schema`"),
        (changed(args_schema=dict), "has no `args_schema`"),
        (changed(run=None), "has nothing to run"),
        (changed(run=lambda self, town, other: ""), "`run` and `args_schema` differ in other, schema"),
        (changed(__init__=lambda self, key: None), "cannot be created without arguments"),
        (changed(is_read_only=lambda self, more: True), "`is_read_only` must not require arguments"),
        (changed(name=""), "'' cannot be a tool's name"),
        (changed(effect="maybe"), "option `effect`"),
    ],
)
def test_a_class_that_is_not_whole_is_refused_with_what_is_missing(form: type, says: str) -> None:
    assert says in refused(form)


def test_an_agent_takes_what_it_leaves_open_from_the_default_one() -> None:
    app = LoomApp()
    agent = app.create_agent("clerk", tools=["rate", "done"], permissions={"rate": "allow"}, mode="read-only")
    assert app.list_agents() == (agent,)
    assert app.get_agent("clerk") is agent
    assert "test_loom_app.py" in agent.origin
    for name, given, says in (
        ("clerk", {}, "two agents are called 'clerk'"),
        ("", {}, "cannot be a name"),
        ("a", {"mode": "fast"}, "mode 'fast' must be one of default, read-only"),
        ("a", {"tools": "rate"}, "`tools` must be a list"),
        ("a", {"max_turns": 0}, "max_turns 0 must be at least 1"),
        ("a", {"pattern": "grove"}, "pattern 'grove' must be one of react, reflect or tree"),
        ("a", {"branches": 1}, "branches 1 must be at least 2"),
        ("a", {"branches": 11}, "branches 11 must be at most 10"),
        ("a", {"pattern": "tree", "rounds": 6}, "rounds 6 must be at most 5 with the tree pattern"),
        ("a", {"pattern": "reflect", "branches": 3}, "branches need the tree pattern"),
        ("a", {"rounds": 11}, "rounds 11 must be at most 10"),
        ("a", {"output": {"type": "objekt"}}, "output_schema: its schema is not a valid JSON Schema"),
        ("a", {"permissions": {"rate": "maybe"}}, "'maybe'"),
    ):
        with pytest.raises(BadRequest, match=says):
            app.create_agent(name, **given)


def test_an_mcp_server_is_what_loom_toml_could_say() -> None:
    app = LoomApp()
    server = app.mcp_server("time", command=("python", "-m", "mcp_server_time"), trust=True)
    assert app.mcp_servers == (server,)
    assert (server.command, server.trust) == (("python", "-m", "mcp_server_time"), True)
    with pytest.raises(BadRequest, match="two MCP servers are called 'time'"):
        app.mcp_server("time", url="http://x/")
    with pytest.raises(BadRequest, match="unknown key 'comand'"):
        app.mcp_server("other", comand="x")


def test_hooks_are_kept_in_order() -> None:
    app = LoomApp()

    @app.on_tool_call
    def first(_call: ToolCall, _run_id: str) -> Deny | Ask | None:
        return None

    @app.on_tool_call
    async def second(_call: ToolCall, _run_id: str) -> Deny | Ask | None:
        return Deny("no")

    assert [(hook.name, hook.moments) for hook in app.hooks] == [
        ("first", (Moment.TOOL_CALL,)),
        ("second", (Moment.TOOL_CALL,)),
    ]


def of(*apps: LoomApp) -> Registry:
    """The apps as one registry beside `done`."""
    return merged({f"app {number}": app for number, app in enumerate(apps)}, built_in=DONE, tool_timeout=33)


def with_tool(name: str = "say", **options: Any) -> LoomApp:
    """An app with one tool."""
    app = LoomApp()
    app.register_tool(numpy_style, name=name, **options)
    return app


def test_a_registry_has_all_tools_with_their_origins_and_time_limits() -> None:
    found = of(with_tool("a"), with_tool("b", timeout=5))
    assert [(name, tool.spec.timeout) for name, tool in found.tools.items()] == [("a", 33), ("b", 5), ("done", 120)]
    assert found.origins["done"] == "built-in"
    assert found.origins["a"].startswith("app 0: tests.unit.app.test_loom_app.numpy_style (")


def size_of(file: Path) -> int:
    """Its size."""
    return file.stat().st_size


def test_a_tool_s_paths_do_not_lead_into_the_state_that_the_settings_name(tmp_path: Path) -> None:
    app, place = LoomApp(), tmp_path.resolve()
    app.register_tool(size_of)
    (place / "state").mkdir()
    (place / "state/stack.json").write_text("{}")
    (place / "short").symlink_to("state")
    tool = merged({"app": app}, built_in={}, home=place / "state").tools["size_of"]
    context = ToolContext(workspace=place, run_id="r", call_id="c", idempotency_key="k", timeout=5)
    for path in ("state/stack.json", "short/stack.json"):
        given = tool.parse({"file": path})
        with pytest.raises(ToolValidationError, match="is Loom's own state"):
            tool.subjects(given, place)
        with pytest.raises(ToolValidationError, match="is Loom's own state"):
            tool.run(given, context)


def test_a_name_given_twice_is_refused_with_both_origins() -> None:
    app = with_tool()
    with pytest.raises(BadRequest, match=r"two tools are called 'say'.*numpy_style.*and.*sphinx_style"):
        app.register_tool(sphinx_style, name="say")
    with pytest.raises(BadRequest, match=r"two tools are called 'say': one is app 0.*, the other app 1"):
        of(with_tool(), with_tool())
    with pytest.raises(BadRequest, match=r"two tools are called 'done': one is built-in, the other app 0"):
        of(with_tool("done"))
    one, other = LoomApp(), LoomApp()
    one.create_agent("x")
    other.create_agent("x")
    with pytest.raises(BadRequest, match="two agents are called 'x'"):
        of(one, other)


def test_an_app_includes_another() -> None:
    whole = LoomApp()
    whole.include(with_tool("a"))
    whole.include(with_tool("b"))
    assert list(whole.tools) == ["a", "b"]
    with pytest.raises(BadRequest, match="both apps have a tool 'a'"):
        whole.include(with_tool("a"))


def test_handlers_of_tasks_are_registered_by_pattern_and_their_names_are_unique() -> None:
    one, other = LoomApp(), LoomApp()

    @one.on_task("node.*")
    def notify(_task: Task) -> None: ...

    @other.on_task("*", name="audit")
    async def write(_task: Task) -> None: ...

    one.include(other)
    found = of(one).handlers
    assert [(each.name, each.pattern) for each in found] == [("notify", "node.*"), ("audit", "*")]
    assert [each.function for each in found] == [notify, write]
    with pytest.raises(BadRequest, match=r"two handlers are called 'notify'.*test_loom_app"):
        one.on_task("*")(notify)
    with pytest.raises(BadRequest, match="both apps have a handler 'audit'"):
        one.include(other)
    with pytest.raises(BadRequest, match="two handlers are called 'audit': one is .*, the other app 1"):
        of(one, other)


@pytest.mark.parametrize(
    ("pattern", "name", "says"),
    [
        ("*.error", "", "matches nothing; write an action"),
        ("nod.*", "", "matches no known action: execute, "),
        ("node.thinking", "", "only text fragments, which are not on the bus"),
        ("*", "two words", "cannot be a handler's name"),
        (print, "", r'write @app.on_task\("node.\*"\)'),
    ],
)
def test_a_handler_that_nothing_would_reach_is_refused(pattern: Any, name: str, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        LoomApp().on_task(pattern, name=name)(print)


def test_folders_of_documents_are_registered_from_where_they_are_named(tmp_path: Path) -> None:
    one, other = LoomApp(), LoomApp()
    assert one.register_knowledge("here", ".") == Path(__file__).parent
    other.register_knowledge("there", tmp_path)
    one.include(other)
    found = of(one).knowledge
    assert {name: folder.path for name, folder in found.items()} == {
        "here": str(Path(__file__).parent),
        "there": str(tmp_path),
    }
    assert Path(__file__).name in found["here"].origin
    for name, folder, says in (
        ("here", ".", "two knowledge bases are called 'here'"),
        ("a b", ".", "'a b' is not a valid name"),
        ("none", "nowhere", "there is no folder .*nowhere"),
    ):
        with pytest.raises(BadRequest, match=says):
            one.register_knowledge(name, folder)
    with pytest.raises(BadRequest, match="two knowledge bases are called 'there': one is .*test_loom_app"):
        of(one, other)


def test_an_agent_with_a_tool_that_is_not_there_is_refused_at_start() -> None:
    app = with_tool("rate")
    app.mcp_server("time", command=["x"])
    app.create_agent("good", tools=["rate", "done", "mcp__time", "mcp__time__now"])
    assert list(of(app).agents) == ["good"]
    app.create_agent("bad", tools=["rat"])
    with pytest.raises(BadRequest, match=r"agent 'bad' .* names the unknown tool 'rat': did you mean 'rate'"):
        of(app)


def test_a_rule_that_can_never_match_is_refused_at_start() -> None:
    app = with_tool("rate")
    app.mcp_server("time", command=["x"])
    rules = {"rate": "ask", "bash(rm:*)": "deny", "mcp__time__now": "allow", "default": "deny"}
    app.create_agent("good", permissions=rules)
    app.create_crew("team", mode="sequential", members=[{"name": "good"}], permissions=rules)
    assert list(of(app).agents) == ["good"]
    wrong = {"bsh(rm:*)": "deny"}
    agent, crew = LoomApp(), LoomApp()
    agent.create_agent("bad", permissions=wrong)
    crew.create_crew("bad", mode="sequential", members=[{"name": "x"}], permissions=wrong)
    says = r"'bad' .*test_loom_app.*'bsh\(rm:\*\)' names no tool: did you mean b"
    with pytest.raises(BadRequest, match=f"agent {says}"):
        of(app, agent)
    with pytest.raises(BadRequest, match=f"crew {says}"):
        of(app, crew)


def test_the_example_is_whole() -> None:
    found = merged({"app": shop.app}, built_in={"read_file": done_tool()})
    assert list(found.tools) == [
        *("chart", "count_words", "order_label", "rate", "read_file", "stock", "track", "weather")
    ]
    assert list(found.agents) == ["clerk"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory whose modules are forgotten afterwards."""
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if not (Path(folder) / "mine.py").exists()])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    forget_modules_of(tmp_path)


APP = "from loom import LoomApp\napp = LoomApp()\n@app.tool\ndef hi() -> str:\n    return 'hi'\n"


def test_an_app_is_loaded_from_a_module_or_a_file(place: Path) -> None:
    (place / "mine").mkdir()
    (place / "mine" / "tools.py").write_text(APP.replace("app =", "other =").replace("@app", "@other"))
    (place / "single.py").write_text(APP)
    assert list(load_app("mine.tools:other").tools) == ["hi"]
    assert list(load_app("single").tools) == ["hi"]
    assert load_app("single.py") is load_app(f"{place}/single.py:app")
    assert with_absolute_file("single.py:app") == f"{place}/single.py:app"
    assert with_absolute_file("single:app") == "single:app"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("", "", "write `package.module:app`"),
        ("nowhere:app", "", "there is no module 'nowhere' in "),
        ("mine.nowhere:app", "", "there is no module 'mine.nowhere'"),
        ("nowhere.py:app", "", "there is no file "),
        ("mine:other", APP, "has no 'other'; did you mean `:app`?"),
        ("mine:LoomApp", APP, "has a type as 'LoomApp', not a LoomApp; did you mean `:app`"),
        ("mine:app", "app = 1", "has a int as 'app', not a LoomApp; create one"),
        ("mine:app", "import loom.app.loom_app\n1 / 0", r"mine.py:2: ZeroDivisionError"),
        ("mine:app", "import missing_thing", r"mine.py:1: ModuleNotFoundError: No module named 'missing_thing'"),
        ("mine:app", "import json\njson.loads('{')", r"mine.py:2: JSONDecodeError"),
        ("mine.py:app", "import sys\nsys.exit('no')", r"mine.py:2: SystemExit: no"),
        ("mine:app", "def (", r"mine.py:1: SyntaxError"),
        ("mine:app", APP + "@app.tool\ndef f(*a): ...", r"mine.py:6: mine.f .*`\*a`"),
    ],
)
def test_an_app_that_cannot_be_loaded_says_where_and_why(place: Path, name: str, text: str, says: str) -> None:
    (place / "mine.py").write_text(text)
    with pytest.raises(BadRequest, match=says):
        load_app(name)


def install(place: Path, name: str, version: str, points: str, **modules: str) -> None:
    """A distribution as an installer leaves it."""
    facts = place / f"{name.replace('-', '_')}-{version}.dist-info"
    facts.mkdir()
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: About {name}\nAuthor: Acme\n"
    (facts / "METADATA").write_text(about)
    (facts / "entry_points.txt").write_text(points)
    for module, text in modules.items():
        (place / f"{module}.py").write_text(text)


@pytest.fixture
def packages(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two packages: tools by an app and by a function, and skills; a third that breaks."""
    monkeypatch.syspath_prepend(str(place))
    install(place, "Acme_Tools", "1.2", "[loom.tools]\nall = acme_tools\n", acme_tools="raise RuntimeError")
    install(place, "acme.one", "2.0", "[loom.tools]\na = acme_one:app\n[loom.skills]\ns = acme_skills\n", acme_one=APP)
    register = "def register(app):\n    app.tool(hello)\ndef hello() -> str:\n    return 'hello'\n"
    install(place, "acme-two", "3.0", "[loom.tools]\nb = acme_two:register\n", acme_two=register)
    (place / "acme_skills" / "trim").mkdir(parents=True)
    return place


def test_a_provider_has_a_prefix_of_its_own_and_answers() -> None:
    app = LoomApp()
    provider = DemoModel()
    app.register_provider("mine", provider)
    assert app.providers == {"mine": provider}
    for prefix, wrong, said in (
        ("mine", provider, "cannot be a prefix"),
        ("a:b", provider, "cannot be a prefix"),
        ("other", object(), "has no `answer` method"),
    ):
        with pytest.raises(BadRequest, match=said):
            app.register_provider(prefix, wrong)  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="'openai', which is built in"):
        ConfiguredProviders().register({"openai": provider})
    with pytest.raises(BadRequest, match="both apps have a provider 'mine'"):
        app.include(app)


def test_packages_are_known_with_their_version_without_running_them(packages: Path) -> None:
    found = {name: package for name, package in installed().items() if name.startswith("acme")}
    assert {name: (package.title, package.summary) for name, package in found.items()} == {
        "acme-tools": ("Acme_Tools 1.2", "About Acme_Tools"),
        "acme-one": ("acme.one 2.0", "About acme.one"),
        "acme-two": ("acme-two 3.0", "About acme-two"),
    }
    assert not {"acme_tools", "acme_one", "acme_two"} & set(sys.modules)
    assert [package.title for package in enabled("acme-two, ACME_one", found)] == ["acme.one 2.0", "acme-two 3.0"]
    assert enabled("*", found) == tuple(found.values())
    assert packages.is_dir()


def test_only_packages_that_are_named_are_loaded(packages: Path) -> None:
    assert list(collect(built_in=DONE).tools) == ["done"]
    found = collect(built_in=DONE, packages="acme-one,acme-two")
    assert list(found.tools) == ["done", "hello", "hi"]
    assert found.origins["hi"].startswith("package acme.one 2.0: acme_one.hi ")
    assert [(folder.path, folder.source) for folder in found.skills] == [
        (str(packages / "acme_skills"), "package acme.one 2.0")
    ]
    with pytest.raises(BadRequest, match="package Acme_Tools 1.2, entry point all .*RuntimeError"):
        collect(built_in=DONE, packages="acme-tools")
    with pytest.raises(BadRequest, match=r"names 'acme-on', which is not installed.*did you mean 'acme-one'"):
        collect(built_in=DONE, packages="acme-on")
    (packages / "mine.py").write_text(APP)
    with pytest.raises(BadRequest, match=r"two tools are called 'hi': one is package acme.one 2.0.*app mine:app"):
        collect(built_in=DONE, packages="acme-one", app="mine:app")


@dataclass
class Here:
    """Runs a command without isolation, where it finds the packages of a test."""

    place: Path

    async def run(self, command: Sequence[str], *, workspace: Path, **_: object) -> Finished:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(self.place), *sys.path])}
        process = await asyncio.create_subprocess_exec(
            *command, cwd=workspace, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        out, _err = await process.communicate()
        return Finished(exit_code=process.returncode or 0, output=out.decode())


@pytest.mark.slow
async def test_what_a_package_would_bring_is_read_in_a_process_of_its_own(packages: Path) -> None:
    install(packages, "liar", "1", "[loom.tools]\na = liar\n", liar="print('loom-describes:[1]')")
    here: Any = Here(packages)
    assert list(await described("acme-two", here)) == [
        {"name": "hello", "description": "", "effect": "once", "permission": "ask", "scope": "sandboxed"}
    ]
    for name, says in (("acme-tools", "RuntimeError"), ("liar", "its output does not list them")):
        with pytest.raises(BadRequest, match=says):
            await described(name, here)
    assert not {"acme_tools", "acme_two", "liar"} & set(sys.modules)


async def test_what_a_package_would_bring_is_read_in_the_sandbox_that_sees_the_installation() -> None:
    sandbox, why_not = find_sandbox("on", opened=installation())
    assert sandbox is not None, why_not
    with pytest.raises(BadRequest, match="KeyError: 'not-installed'"):
        await described("not-installed", sandbox)


def test_a_file_says_the_same_of_how_an_agent_comes_to_its_answers(tmp_path: Path) -> None:
    file = tmp_path / "editor.yaml"
    file.write_text("pattern: reflect\nrounds: 3\nevaluate: true\noutput_schema: {type: array}\n")

    agent = read_agent_file(file)

    assert (agent.pattern, agent.rounds, agent.evaluates, agent.output_schema) == (
        "reflect",
        3,
        True,
        {"type": "array"},
    )
    child = with_inherited({"editor": agent, "child": AgentDefinition(name="child", extends="editor", rounds=1)})[
        "child"
    ]
    assert (child.pattern, child.rounds, child.evaluates) == ("reflect", 1, True)
    file.write_text("pattern: tree\nbranches: 4\n")
    tree = with_inherited({"editor": read_agent_file(file), "child": AgentDefinition(name="child", extends="editor")})[
        "child"
    ]
    assert (tree.pattern, tree.branches, tree.rounds) == ("tree", 4, None)
    file.write_text("output_schema: {type: objekt}\n")
    with pytest.raises(BadRequest, match=f"{file}: output_schema: its schema is not a valid JSON Schema"):
        read_agent_file(file)


def test_an_agent_says_how_it_comes_to_its_answers() -> None:
    default = AgentSpec(name="default", model="demo", evaluates=True)
    plain, careful = (
        LoomApp().create_agent("plain"),
        LoomApp().create_agent("careful", output=list[int], pattern="reflect", rounds=3, evaluate=False),
    )

    spec = spec_of(careful, default)
    assert (spec.pattern, spec.rounds, spec.evaluates) == ("reflect", 3, False)
    assert spec.output_schema == {"type": "array", "items": {"type": "integer"}}
    left_open = spec_of(plain, default)
    assert (left_open.pattern, left_open.evaluates, left_open.output_schema) == ("react", True, None)


def test_the_default_agent_fills_what_a_definition_leaves_open() -> None:
    default = AgentSpec(name="default", model="demo", max_turns=9, permissions={"bash": "deny", "rate": "deny"})
    app = with_tool("rate")
    agent = app.create_agent("clerk", system_prompt="Be kind.", permissions={"rate": "allow"}, tools=["rate", "mcp__x"])
    spec = spec_of(agent, default)
    assert (spec.name, spec.model, spec.max_turns, spec.system_prompt) == ("clerk", "demo", 9, "Be kind.")
    assert spec.permissions == {"bash": "deny", "rate": "allow"}
    names = ["rate", "done", "bash", "mcp__x__a", "mcp__xy__a"]
    specs = [ToolSpec(name=name, description="", parameters={}) for name in names]
    assert [tool.name for tool in tools_of(agent, specs)] == ["done", "mcp__x__a", "rate"]
    assert [tool.name for tool in tools_of(None, specs)] == sorted(names)
