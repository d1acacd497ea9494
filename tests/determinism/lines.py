"""The lines of workflow and domain code that a replay could take another way: `python -m tests.determinism.lines`.

What such code may import is listed here, the rest is refused. So nothing impure is reached through something else: each
module of ours that it imports is checked in the same way, and of the activities it gets nothing but references.
"""

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
GUARDED: Final = ("loom_domain", "workflows", "activities/failures.py", "activities/signatures.py")
OUTSIDE_WORKFLOWS: Final = (
    "workflows/cached_waits.py",
    "workflows/event_order.py",
    "workflows/executed_task.py",
    "workflows/inline_queries.py",
    "workflows/measured_runs.py",
    "workflows/runner.py",
    "workflows/signing.py",
)
"""Settings of a worker; no workflow imports it."""

ALL: Final = frozenset({"*"})
IMPORTS: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(
        (
            "bisect",
            "collections",
            "collections.abc",
            "contextlib",
            "dataclasses",
            "difflib",
            "enum",
            "fractions",
            "functools",
            "hashlib",
            "hmac",
            "ipaddress",
            "itertools",
            "json",
            "math",
            "re",
            "shlex",
            "tomllib",
            "types",
            "typing",
            "unicodedata",
            "temporalio.common",
            "temporalio.converter",
            "temporalio.exceptions",
            "temporalio.workflow",
            "temporalio.api.common.v1",
        ),
        ALL,
    ),
    "base64": frozenset({"b64decode"}),
    "zlib": frozenset({"crc32"}),
    "asyncio": frozenset({"CancelledError", "Future", "Task", "create_task", "gather"}),
    "contextvars": frozenset({"ContextVar"}),  # a handler's own
    "cryptography.exceptions": frozenset({"InvalidSignature"}),
    "cryptography.hazmat.primitives.asymmetric.ed25519": frozenset({"Ed25519PublicKey"}),  # verifies, never signs
    "datetime": frozenset({"UTC", "date", "datetime", "timedelta"}),
    "fnmatch": frozenset({"fnmatchcase"}),
    "pydantic": frozenset(
        {
            "AfterValidator",
            "AliasChoices",
            "AwareDatetime",
            "BaseModel",
            "ConfigDict",
            "Discriminator",
            "Field",
            "StringConstraints",
            "Tag",
            "TypeAdapter",
            "ValidationError",
        }
    ),
    "pydantic_core": frozenset({"PydanticSerializationError", "from_json", "to_json", "to_jsonable_python"}),
    "temporalio": frozenset({"workflow"}),
    "temporalio.contrib.pydantic": frozenset({"PydanticPayloadConverter"}),
    "urllib.parse": frozenset({"quote", "unquote", "urljoin", "urlsplit"}),
}
"""Everything that is not of ours, with the names that may be used of it."""

BUILTINS: Final = frozenset(
    {
        "__file__",
        "__import__",
        "breakpoint",
        "compile",
        "delattr",
        "eval",
        "exec",
        "globals",
        "hash",
        "id",
        "input",
        "locals",
        "open",
        "print",
        "setattr",
        "vars",
    }
)
ATTRIBUTES: Final = frozenset(
    {
        "__builtins__",
        "__dict__",
        "__globals__",
        "__hash__",
        "astimezone",
        "fromtimestamp",
        "get_loop",
        "now",
        "run_in_executor",
        "strftime",
        "today",
        "unsafe",
        "utcfromtimestamp",
        "utcnow",
    }
)
"""Clocks, the local time zone, the order in memory, the way out of a workflow; `workflow.now()` is the run's clock."""
CHANGES: Final = frozenset(
    {
        "add",
        "append",
        "appendleft",
        "clear",
        "discard",
        "extend",
        "insert",
        "pop",
        "popitem",
        "popleft",
        "remove",
        "reverse",
        "setdefault",
        "sort",
        "update",
    }
)
"""Methods that change a list, a dict, a set, a deque or a Counter."""

STARTS: Final = frozenset(
    f"{verb}_{kind}{form}"
    for verb in ("start", "execute")
    for kind in ("activity", "local_activity")
    for form in ("", "_class", "_method")
)
"""Of `temporalio.workflow`: what starts an activity, which it takes first."""

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


CLOCK_READERS: Final = frozenset(
    {
        "_escalate",  # in a workflow without local activities, in its first task
        "_is_long",  # the cache of the worker
        "_looks_back",  # in a workflow without local activities
        "_should_rotate",  # only in a task that no replay joins with another
        "_sleep_until",  # the length of a timer that is started in any case
        "_too_early",  # in a workflow without local activities
        "_wait_with_timers",  # of an earlier release
        "_watch_time",  # the same
    }
)
"""The functions of workflows that may calculate with the run's clock, and why."""
CLOCKS: Final = frozenset({"workflow.now", "workflow.time"})
CLOCK_FACTS: Final = frozenset({"_began", "_looked_at"})
"""What may keep the run's clock for them."""


def faults(source: str, guarded: frozenset[str]) -> Iterator[tuple[int, str]]:
    """The lines that are not deterministic, each with what is wrong; `guarded` are the modules that are checked."""
    tree = ast.parse(source)
    yield from _clock_decisions(tree)
    names = _Imports(guarded)
    names.visit(tree)
    yield from names.faults
    yield from _forbidden_names(tree, names.modules)
    yield from _references_only(tree, names.activities)
    yield from _changed_globals(tree)


class _Imports(ast.NodeVisitor):
    """What a module imports, and what of it may not be imported."""

    def __init__(self, guarded: frozenset[str]) -> None:
        self._guarded = guarded
        self.faults: list[tuple[int, str]] = []
        self.modules: dict[str, str] = {}
        """The modules that are known by a name here."""
        self.activities: set[str] = set()

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._check(node.lineno, alias.name, None)
            top = alias.name if alias.asname else alias.name.partition(".")[0]
            self.modules[alias.asname or top] = top

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            module = "." * node.level + (node.module or "")
            whole = f"{module}.{alias.name}"
            bound = alias.asname or alias.name
            if whole in IMPORTS or whole in self._guarded:
                self.modules[bound] = whole
            elif module.startswith("loom.activities.") and module not in self._guarded:
                self.activities.add(bound)
            else:
                self._check(node.lineno, module, alias.name)

    def _check(self, line: int, module: str, name: str | None) -> None:
        if module in self._guarded:
            return
        if module not in IMPORTS or (name is not None and not _may_use(module, name)):
            what = module if name is None else f"{module}.{name}"
            self.faults.append((line, f"imports {what}, which is not known to be deterministic"))


def _may_use(module: str, name: str) -> bool:
    if f"{module}.{name}" in IMPORTS or (module == "temporalio.workflow" and name == "now"):
        return True
    if IMPORTS[module] is ALL:
        is_module = name in sys.stdlib_module_names and not module.startswith("temporalio")
        return not is_module and name not in ATTRIBUTES
    return name in IMPORTS[module]


def _forbidden_names(tree: ast.Module, modules: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()) if name in BUILTINS:
                yield node.lineno, f"uses {name}, which differs from process to process or reaches outside"
            case ast.Call(func=ast.Name(id="getattr"), args=[ast.Name(id=name), *_]) if name in modules:
                yield node.lineno, f"takes a name from the module {name} that nobody can read here"
            case ast.Attribute(value=ast.Name(id=base), attr=name) if modules.get(base) in IMPORTS:
                if not _may_use(modules[base], name):
                    yield node.lineno, f"uses {modules[base]}.{name}, which is not known to be deterministic"
            case ast.Attribute(attr=name) if name in ATTRIBUTES:
                yield node.lineno, f"uses .{name}, which differs from replay to replay"
            case _:
                pass


def _clock_decisions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The run's clock is handed on as the time of something, and never compared or calculated with: a replay may have
    another one (a query can deliver events early, and tasks in which a local activity runs can be joined).
    """
    handed_on = {id(value) for node in ast.walk(tree) for value in _handed_on(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in CLOCKS and id(node) not in handed_on:
            yield node.lineno, "decides by the run's clock: start a timer, and decide by its end"


def _handed_on(node: ast.AST) -> Iterator[ast.AST]:
    """The values that a node hands on as they are."""
    match node:
        case ast.Call(func=ast.Name(id="max" | "min" | "abs" | "bool")):
            pass
        case ast.Call(args=args, keywords=keywords):
            yield from (*args, *(keyword.value for keyword in keywords))
        case ast.Assign(targets=[ast.Attribute(attr=name)], value=value) if name in CLOCK_FACTS:
            yield value
        case ast.Return(value=ast.expr() as value):
            yield value
        case ast.IfExp(body=body, orelse=orelse):
            yield from (body, orelse)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name in CLOCK_READERS:
            yield from ast.walk(node)
        case _:
            pass


def _references_only(tree: ast.Module, activities: set[str]) -> Iterator[tuple[int, str]]:
    """Of the activities there are names alone: `LanguageModel.call_model` as what is to be started, nothing else."""
    references = {
        id(named.value)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in STARTS
        and call.args
        for named in _alternatives(call.args[0])
        if isinstance(named, ast.Attribute)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in activities and id(node) not in references:
            yield node.lineno, f"uses {node.id}, of the activities, for more than to start one"


def _alternatives(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, ast.IfExp):
        yield from _alternatives(value.body)
        yield from _alternatives(value.orelse)
    else:
        yield value


def _changed_globals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    top = {name for statement in tree.body for name in _bound(statement)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield node.lineno, "changes a global: all runs of a worker share it"
    for statement in tree.body:
        for function in _outermost(statement):
            own = {name for inner in ast.walk(function) for name in _bound(inner)}
            yield from _changes(function, top - own)


def _changes(function: ast.AST, shared: set[str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(function):
        match node:
            case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                changed: ast.expr | None = node.value
            case ast.Call(func=ast.Attribute(value=value, attr=method)) if method in CHANGES:
                changed = value
            case ast.Call(func=ast.Name(id="next"), args=[value, *_]):
                changed = value
            case _:
                changed = None
        if changed is not None and _is_shared(changed, shared):
            yield changed.lineno, "changes what all runs of a worker share"


def _is_shared(changed: ast.expr, shared: set[str]) -> bool:
    """Whether a value is the module's or a class's rather than a run's."""
    while isinstance(changed, (ast.Attribute, ast.Subscript)):
        if isinstance(changed, ast.Attribute) and changed.attr == "__class__":
            return True
        changed = changed.value
    match changed:
        case ast.Name(id=name):
            return name in shared or name == "cls"
        case ast.Call(func=ast.Name(id="type"), args=[_]):
            return True
        case _:
            return False


def _outermost(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, Function):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        yield from _outermost(child)


def _bound(node: ast.AST) -> Iterator[str]:
    """The names that one node binds."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from (alias.asname or alias.name for alias in aliases)
        case ast.Assign(targets=targets):
            yield from (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name) and _is_store(n))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.arg(arg=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case _:
            pass


def _is_store(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def guarded_files(root: Path = ROOT) -> Sequence[Path]:
    """What is checked."""
    found = [
        path
        for entry in GUARDED
        for path in ([root / entry] if entry.endswith(".py") else (root / entry).rglob("*.py"))
    ]
    return sorted(path for path in found if path.relative_to(root).as_posix() not in OUTSIDE_WORKFLOWS)


def module_of(path: Path, root: Path = ROOT) -> str:
    """The name under which a file is imported."""
    first, *rest = path.relative_to(root).with_suffix("").parts
    parts = ["loom", "domain" if first == "loom_domain" else first, *rest]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def check(root: Path = ROOT) -> Sequence[str]:
    """Every fault of a tree, as `path:line: what is wrong`."""
    files = guarded_files(root)
    guarded = frozenset(module_of(path, root) for path in files)
    return [
        f"{path.relative_to(root)}:{line}: {what}"
        for path in files
        for line, what in sorted(set(faults(path.read_text("utf-8"), guarded)))
    ]


if __name__ == "__main__":
    found = check()
    print("\n".join(found) or "Workflow and domain code is deterministic.")
    sys.exit(1 if found else 0)
