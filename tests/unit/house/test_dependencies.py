"""`app.provide`: what a worker opens once and injects by type into tools, hooks, interceptors and task handlers."""

import json
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from loom import Deny, LoomApp, Task, ToolCall, ToolContext, errors
from loom.activities.toolbox.hooks import answer_of, objection_to
from loom.activities.toolbox.user_tools.dependencies import Dependencies, dependency_of, with_dependencies
from loom.app.registry import Registry, merged
from tests.commands import Commands, commands_in


class Pool:
    """A connection pool, which JSON cannot carry."""

    def __init__(self) -> None:
        self.is_open = True

    def price(self, article: str) -> int:
        """Look an article up."""
        assert self.is_open
        return len(article)


class Cache:
    """Something that needs the pool."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool


@dataclass
class Clock:
    """A dataclass, which JSON could carry."""

    now: int = 12


LOG: list[str] = []


async def make_pool() -> AsyncIterator[Pool]:
    """Open and close a pool."""
    pool = Pool()
    LOG.append("pool opened")
    yield pool
    pool.is_open = False
    LOG.append("pool closed")


@contextmanager
def make_cache(pool: Pool) -> Iterator[Cache]:
    """A cache over the pool."""
    LOG.append("cache opened")
    yield Cache(pool)
    LOG.append(f"cache closed, pool {'open' if pool.is_open else 'closed'}")


def context(folder: Path) -> ToolContext:
    """A call's context."""
    return ToolContext(workspace=folder, run_id="r", call_id="c", idempotency_key="k", timeout=5)


def registry(app: LoomApp) -> Registry:
    """What a worker with this app serves."""
    return merged({"app": app}, built_in={})


async def output(served: Registry, folder: Path, name: str, **arguments: Any) -> Any:
    """The output of one call."""
    tool = served.tools[name]
    return await tool.run(tool.parse(arguments), context(folder))


def provided() -> LoomApp:
    """An app with a pool and a cache."""
    app = LoomApp()
    app.provide(make_pool)
    app.provide(make_cache)
    return app


async def test_a_value_is_opened_once_in_order_and_closed_in_reverse(tmp_path: Path) -> None:
    LOG.clear()
    app = provided()

    @app.tool(effect="read")
    async def price(article: str, pool: Pool) -> int:
        """Tell a price.

        Args:
            article: Which.
        """
        return pool.price(article)

    @app.tool(effect="read")
    def cached(cache: Cache, article: str, context: ToolContext) -> str:
        """Tell a price from the cache."""
        return f"{cache.pool.price(article)} for {context.run_id}"

    served = registry(app)
    async with served.dependencies.opened():
        assert await output(served, tmp_path, "price", article="tea") == "3"
        assert await output(served, tmp_path, "cached", article="teapot") == "6 for r"
        assert LOG == ["pool opened", "cache opened"]
    assert LOG[2:] == ["cache closed, pool open", "pool closed"]


def test_an_injected_parameter_is_no_argument() -> None:
    app = provided()

    @app.tool
    async def price(article: str, pool: Annotated[Pool, "shared"], cache: Cache) -> int:
        """Tell a price."""
        return pool.price(article)

    (spec,) = app.list_tools()
    assert list(spec.parameters["properties"]) == ["article"]
    with pytest.raises(errors.ToolValidationError, match="`pool` is not an argument"):
        registry(app).tools["price"].parse({"article": "tea", "pool": 1})


async def test_a_type_may_be_provided_after_the_tool_even_when_json_could_carry_it(tmp_path: Path) -> None:
    app = LoomApp()

    @app.tool(effect="read", timeout=7)
    def hour(clock: Clock, zone: str = "UTC") -> str:
        """Tell the hour."""
        return f"{clock.now} {zone}"

    assert list(app.list_tools()[0].parameters["properties"]) == ["clock", "zone"]
    app.provide(Clock)
    assert list(app.list_tools()[0].parameters["properties"]) == ["zone"]
    served = registry(app)
    assert served.tools["hour"].spec.timeout == 7
    async with served.dependencies.opened():
        assert await output(served, tmp_path, "hour") == "12 UTC"


async def test_another_app_may_provide_the_type(tmp_path: Path) -> None:
    app, other = provided(), LoomApp()

    @other.tool(effect="read")
    async def price(article: str, pool: Pool) -> int:
        """Tell a price."""
        return pool.price(article)

    served = merged({"app": app, "package": other}, built_in={})
    async with served.dependencies.opened():
        assert await output(served, tmp_path, "price", article="tea") == "3"
    app.include(other)
    assert [one.kind for one in app.dependencies] == [Pool, Cache]
    async with registry(app).dependencies.opened():
        pass


class Wanted(BaseModel):
    """Arguments."""

    article: str


class Shop:
    """A tool in class form, with the model."""

    name = "shop"
    description = "Tell a price."
    args_schema = Wanted
    is_read_only = True

    async def run(self, wanted: Wanted, pool: Pool) -> int:
        """Run."""
        return pool.price(wanted.article)


class ShopByField:
    """A tool in class form, with fields."""

    name = "fields"
    description = "Tell a price."
    args_schema = Wanted
    is_read_only = True

    def __call__(self, pool: Pool, article: str, context: Any) -> str:
        return f"{pool.price(article)} {context.call_id}"


async def test_class_forms_are_injected_too(tmp_path: Path) -> None:
    app = LoomApp()
    app.register_tool(Shop)
    app.register_tool(ShopByField())
    app.provide(make_pool)
    served = registry(app)
    async with served.dependencies.opened():
        assert await output(served, tmp_path, "shop", article="tea") == "3"
        assert await output(served, tmp_path, "fields", article="tea") == "3 c"


@dataclass
class Around:
    """An interceptor that needs something in both methods."""

    seen: list[str] = field(default_factory=list)

    def before(self, task: Task, pool: Pool) -> None:
        """Look."""
        self.seen.append(f"before {pool.is_open}")

    async def after(self, clock: Clock, task: Any, result: str) -> str:
        """Change."""
        return f"{result} at {clock.now}"


async def test_hooks_interceptors_and_handlers_are_injected() -> None:
    app = provided()
    app.provide(Clock)
    around = Around()

    @app.on_tool_call
    async def gate(call: ToolCall, run_id: str, *, pool: Pool) -> Deny | None:
        return Deny(f"{run_id} {pool.price(call.name)}")

    @app.on_task("node.*")
    def heard(clock: Clock, task: Task) -> str:
        return f"{task.action} at {clock.now}"

    app.intercept(around)
    served = registry(app)
    gates: Any = served.hooks[0]
    chain: Any = served.hooks[1]
    async with served.dependencies.opened():
        objection = await objection_to(ToolCall(id="1", name="bash", arguments={}), "run-1", [gates])
        assert objection is not None
        assert objection.answer == Deny("run-1 4")
        task: Any = type("T", (), {"action": "node.start"})()
        assert await answer_of("heard", served.handlers[0].function, task, patience=1) == "node.start at 12"
        await answer_of("around", chain.before, task, patience=1)
        assert around.seen == ["before True"]
        assert await answer_of("around", chain.after, task, "done", patience=1) == "done at 12"


async def test_arguments_that_are_bound_stay_bound() -> None:
    def priced(shop: str, article: str, pool: Pool) -> str:
        return f"{shop}: {pool.price(article)}"

    dependencies = Dependencies([dependency_of(make_pool, "here")])
    function = with_dependencies(partial(priced, "corner shop"), dependencies, "hook 'priced'", 1)
    async with dependencies.opened():
        assert function("tea") == "corner shop: 3"


def test_types_that_cannot_be_read_are_refused_only_where_one_may_have_to_be_injected() -> None:
    def needs_more(call: ToolCall, run_id: str, pool: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821
        """Called with two values."""

    def needs_none(call: "Nowhere", run_id: str) -> None:  # type: ignore[name-defined]  # noqa: F821
        """The same."""

    with pytest.raises(errors.BadRequest, match="hook 'gate': its types cannot be read.*Nowhere"):
        with_dependencies(needs_more, Dependencies(), "hook 'gate'", 2)
    assert with_dependencies(needs_none, Dependencies(), "hook 'gate'", 2) is needs_none


def test_injection_changes_no_digest_of_a_hook_s_code() -> None:
    app = LoomApp()

    @app.on_tool_call
    def gate(call: ToolCall, run_id: str, clock: Clock | None = None) -> None:
        return None

    plain = registry(app).hook_code
    app.provide(make_pool)
    assert registry(app).hook_code == plain != {}


def unknown_of_tool(app: LoomApp) -> None:
    """A tool that wants what nothing provides."""

    @app.tool
    def price(pool: Pool) -> None:
        """Tell."""


def unknown_of_hook(app: LoomApp) -> None:
    """A hook that wants it."""

    @app.on_start
    def gate(run: Any, pool: Pool) -> None:
        return None


def unknown_of_interceptor(app: LoomApp) -> None:
    """An interceptor that wants it."""

    class Chain:
        def before(self, task: Task, pool: Pool) -> None:
            """Look."""

    app.intercept(Chain)


def unknown_of_handler(app: LoomApp) -> None:
    """A handler that wants it."""

    @app.on_task("*")
    def heard(task: Task, pool: Pool) -> None:
        return None


@pytest.mark.parametrize(
    ("register", "says"),
    [
        (
            unknown_of_tool,
            r"parameter `pool` of the tool price has the type Pool, which nothing provides.*app\.provide",
        ),
        (unknown_of_hook, r"hook 'gate': parameter `pool` has the type Pool, which nothing provides"),
        (unknown_of_interceptor, r"interceptor 'Chain': parameter `pool` has the type Pool"),
        (unknown_of_handler, r"handler 'heard': parameter `pool` has the type Pool"),
    ],
)
def test_a_type_that_nothing_provides_is_refused_at_the_start(register: Callable[[LoomApp], None], says: str) -> None:
    app = LoomApp()
    register(app)
    with pytest.raises(errors.BadRequest, match=says):
        registry(app)


def without_type():  # type: ignore[no-untyped-def]
    """Bad."""


def of_text() -> str:
    """Bad."""
    return ""


def of_lists() -> Iterator[list[str]]:
    """Bad."""
    yield []


async def of_generators() -> Pool:  # type: ignore[misc]
    """Bad: it yields."""
    yield Pool()


def of_anything() -> Iterator:  # type: ignore[type-arg]
    """Bad."""
    yield Pool()


async def of_anything_later() -> typing.AsyncIterator:  # type: ignore[type-arg]
    """Bad."""
    yield Pool()


def lost() -> "Nowhere":  # type: ignore[name-defined]  # noqa: F821
    """Bad."""


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        (without_type, "return annotation must name a type of your own"),
        (of_text, "return annotation must name a type of your own"),
        (of_lists, "return annotation must name a type of your own"),
        (of_generators, "return annotation must name a type of your own"),
        (of_anything, "return annotation must name a type of your own"),
        (of_anything_later, "return annotation must name a type of your own"),
        (lost, "its types cannot be read.*Nowhere"),
        (Pool(), "takes a function, a generator or a class"),
    ],
)
def test_a_factory_must_say_what_it_provides(factory: Any, says: str) -> None:
    with pytest.raises(errors.BadRequest, match=says) as caught:
        LoomApp().provide(factory)
    assert caught.value.context["field"] == "provide"


def test_a_type_is_provided_once() -> None:
    app = provided()
    with pytest.raises(errors.BadRequest, match=r"Pool is provided twice: by .*make_pool.* and by .*make_pool"):
        app.provide(make_pool)
    with pytest.raises(errors.BadRequest, match="Pool is provided twice"):
        app.include(provided())
    with pytest.raises(errors.BadRequest, match="Pool is provided twice"):
        merged({"one": app, "other": provided()}, built_in={})


def test_a_factory_s_parameters_must_be_provided_before_it() -> None:
    app = LoomApp()
    app.provide(make_cache)
    app.provide(make_pool)
    with pytest.raises(
        errors.BadRequest, match=r"make_cache.*parameter `pool` has the type Pool, which nothing before"
    ):
        registry(app)


class Failing:
    """Cannot be made."""


async def fails() -> Failing:
    """Fail."""
    raise ConnectionError("no route to the database")


async def test_a_factory_that_fails_is_named_and_what_was_opened_is_closed() -> None:
    LOG.clear()
    app = provided()
    app.provide(fails)
    with pytest.raises(
        errors.BadRequest, match=r"Failing cannot be provided because .*fails.* failed: ConnectionError: no route"
    ):
        async with registry(app).dependencies.opened():
            pytest.fail("opened")
    assert LOG[-1] == "pool closed"


@asynccontextmanager
async def breaks_at_the_end() -> AsyncIterator[Clock]:
    """Fail when closed."""
    yield Clock()
    raise OSError("cannot close")


async def test_one_that_cannot_be_closed_does_not_keep_others_open() -> None:
    LOG.clear()
    each = [dependency_of(factory, factory.__name__) for factory in (make_pool, breaks_at_the_end)]
    async with Dependencies(each).opened():
        pass
    assert LOG == ["pool opened", "pool closed"]


async def test_outside_a_worker_a_call_says_that_nothing_is_open(tmp_path: Path) -> None:
    app = provided()

    @app.tool(effect="read")
    def price(article: str, pool: Pool) -> int:
        """Tell a price."""
        return pool.price(article)

    with pytest.raises(errors.LoomError, match="Pool is not open"):
        await output(registry(app), tmp_path, "price", article="tea")


APP = '''
from collections.abc import AsyncIterator
from pathlib import Path

from loom import Deny, LoomApp, ToolCall

LOG = Path(__file__).with_name("log")
app = LoomApp()


class Pool:
    size = 3


@app.provide
async def make_pool() -> AsyncIterator[Pool]:
    with LOG.open("a") as log:
        log.write("opened ")
    yield Pool()
    with LOG.open("a") as log:
        log.write("closed ")


@app.tool(effect="read")
def size_of(name: str, pool: Pool) -> str:
    """Tell a size."""
    return f"{name}: {pool.size}"


@app.on_tool_call
def gate(call: ToolCall, run_id: str, pool: Pool) -> Deny | None:
    return Deny(f"{pool.size} are open") if call.name == "bash" else None
'''


@pytest.fixture
def loom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    """The command, in a folder with an app that provides something."""
    file = tmp_path / "shop.py"
    file.write_text(APP)
    with commands_in(tmp_path, monkeypatch, LOOM_APP=f"{file}:app") as commands:
        yield commands


def test_commands_open_what_they_need_and_nothing_else(loom: Commands) -> None:
    log = loom.folder / "log"
    listed = loom("tools", "list", "--json")
    assert "size_of" in {tool["name"] for tool in json.loads(listed.out)["tools"]}
    shown = loom("tools", "show", "size_of", "--json")
    assert list(json.loads(shown.out)["parameters"]["properties"]) == ["name"]
    assert json.loads(loom("permissions", "check", "size_of", '{"name": "x"}', "--json").out)["verdict"] == "allow"
    assert loom("agents", "list").code == 0
    opened = log.read_text() if log.exists() else ""

    called = loom("tools", "call", "size_of", '{"name": "pool"}')
    assert (called.out, log.read_text()) == ("pool: 3\n", f"{opened}opened closed ")

    checked = loom("permissions", "check", "bash", '{"command": "ls"}', "--json")
    assert json.loads(checked.out)["reason"] == "3 are open"
