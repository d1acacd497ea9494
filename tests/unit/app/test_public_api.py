"""The public interface: which names `loom` has, what importing it costs, and how requests and results are typed."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import is_typeddict

import pytest
from pydantic import BaseModel

import loom
from loom import RunResult, RunStatus, TypedResult, errors
from loom.app.output_types import typed
from loom.request_fields import BudgetFields, CrewRunFields, ForkFields, ForkPointFields, GitFields, RunFields
from loom.workflows.validation import read_crew_request, read_request

PUBLIC = [
    "Action",
    "AgentDefinition",
    "AgentStats",
    "Answer",
    "AnthropicProvider",
    "ApprovalFields",
    "ArchiveFields",
    "Artifact",
    "Ask",
    "BudgetFields",
    "ChatAnswer",
    "ChatSession",
    "ChildFields",
    "ClientSettings",
    "ContextCompressor",
    "ContextSource",
    "Costs",
    "Crew",
    "CrewRunFields",
    "Deny",
    "Embedder",
    "EvalRun",
    "Forgotten",
    "ForkFields",
    "GitFields",
    "Hit",
    "Instead",
    "KnowledgeBase",
    "KnowledgeHit",
    "KnowledgeStore",
    "LLMProvider",
    "LoomApp",
    "LoomClient",
    "LoomPlugin",
    "McpServer",
    "Memory",
    "MemoryStats",
    "MemoryStore",
    "Message",
    "ModelAnswer",
    "ModelCall",
    "OpenAIProvider",
    "Origin",
    "Part",
    "PartFields",
    "PastTurn",
    "PendingAnswer",
    "PendingCall",
    "Polled",
    "ResponsesProvider",
    "RunError",
    "RunEstimate",
    "RunFields",
    "RunInfo",
    "RunReport",
    "RunResult",
    "RunStatus",
    "RunSummary",
    "SentMessage",
    "Settings",
    "SilentRun",
    "StatusFields",
    "StreamUnavailable",
    "Streamed",
    "Subscription",
    "Task",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolOutput",
    "ToolSpec",
    "Transport",
    "TypedResult",
    "Usage",
    "Watched",
    "errors",
    "load_settings",
    "new_task",
    "part_of",
    "worker",
]

HEAVY = ("openai", "anthropic", "redis", "psycopg", "temporalio", "mcp", "pydantic", "tree_sitter", "httpx2")

RESULT = RunResult(
    status=RunStatus.COMPLETED,
    output='{"title": "t"}',
    structured_output={"title": "t"},
    completed_explicitly=False,
    turns=1,
    usage={},
    cost=None,
    quality_metrics=None,
    tool_calls=0,
    artifacts=(),
    error=None,
)


class Report(BaseModel):
    """An answer."""

    title: str


@dataclass
class Other:
    """An answer that is not there."""

    missing: int


def test_the_public_names_are_these_and_no_others() -> None:
    assert loom.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(loom))


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_can_be_imported(name: str) -> None:
    assert getattr(loom, name) is not None


def test_type_checkers_see_the_names_that_exist_at_run_time() -> None:
    tree = ast.parse(Path(loom.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen | {"errors": "loom.errors"} == loom._MODULE_OF  # a module
    assert sorted(seen) == sorted(PUBLIC)


def with_fields(kind: type) -> bool:
    return is_dataclass(kind) or is_typeddict(kind) or issubclass(kind, BaseModel)


def parents(kind: type) -> tuple[type, ...]:
    """The bases as they are written. A TypedDict has no others at run time than `dict`."""
    return tuple(getattr(kind, "__orig_bases__", ())) or kind.__bases__


def in_code(kind: type) -> Iterator[type]:
    """A class of Loom's and the classes that it has its fields from."""
    if kind.__module__.startswith("loom."):
        yield kind
        yield from (above for parent in parents(kind) if isinstance(parent, type) for above in in_code(parent))


def undocumented(kind: type) -> list[str]:
    """The fields with neither a text below them nor a description."""
    tree = ast.parse(Path(sys.modules[kind.__module__].__file__ or "").read_text())
    (body,) = (node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == kind.__name__)
    return [
        f"{kind.__name__}.{ast.unparse(node.target)}"
        for node, below in pairwise([*body, ast.Pass()])
        if isinstance(node, ast.AnnAssign) and not _is_text(below) and not _is_described(node.value)
    ]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_field_of_a_public_class_is_documented(name: str) -> None:
    public = getattr(loom, name)
    kinds = in_code(public) if isinstance(public, type) and with_fields(public) else ()
    assert [field for kind in kinds for field in undocumented(kind)] == []


def _is_described(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and any(each.arg == "description" for each in value.keywords)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'loom' has no attribute 'Agent'"):
        loom.Agent  # noqa: B018


def imported(statement: str) -> set[str]:
    """The modules of a new process that runs this statement."""
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout))


def test_importing_loom_imports_no_sdk_and_no_driver() -> None:
    modules = imported("import loom")
    assert not modules & set(HEAVY)
    assert {name for name in modules if name.startswith("loom")} == {"loom"}


def test_an_app_is_built_without_an_sdk_a_driver_or_temporal() -> None:
    modules = imported("from loom import LoomApp, Ask, Deny, ToolContext; LoomApp()")
    assert not modules & {"openai", "anthropic", "redis", "psycopg", "mcp", "tree_sitter"}


def test_a_provider_is_made_without_an_sdk_a_driver_or_temporal() -> None:
    kinds = ("OpenAIProvider", "ResponsesProvider", "AnthropicProvider")
    modules = imported("\n".join(f"from loom import {kind}; {kind}(api_key='k')" for kind in kinds))
    assert not modules & {"openai", "anthropic", "redis", "psycopg", "mcp", "tree_sitter"}


def test_a_client_is_imported_without_a_provider_s_sdk_and_without_what_runs_are_made_of() -> None:
    modules = imported("from loom import LoomClient")
    assert not modules & {"openai", "anthropic", "psycopg", "mcp"}
    assert not modules & {"loom.domain.agents.spec", "loom.domain.crews.crew", "loom.domain.run.state"}


def test_a_worker_without_encryption_is_imported_without_the_library_that_encrypts() -> None:
    assert "cryptography.hazmat.bindings._rust" not in imported("import loom._worker")


def test_requests_are_typed_with_the_fields_that_a_worker_reads() -> None:
    rejected = set()
    for field in (*RunFields.__annotations__, "agents"):
        try:
            read_request({"task": "t", field: object()})
        except errors.BadRequest as error:
            rejected |= {field} if "unknown field" in error.message else set()
    assert rejected == {"agents"}

    with pytest.raises(errors.BadRequest) as caught:
        read_request({"task": "t", "x": 1})
    assert sorted({*RunFields.__annotations__, "task"}) == caught.value.message.partition("known: ")[2].split(", ")
    with pytest.raises(errors.BadRequest) as caught:
        read_crew_request({"task": "t", "crew": "c", "xyz": 1})
    known = caught.value.message.partition("known: ")[2].split(", ")
    assert sorted({*CrewRunFields.__annotations__, "task", "crew"}) == known
    assert set(ForkFields.__annotations__) < set(CrewRunFields.__annotations__) < set(RunFields.__annotations__)


@pytest.mark.parametrize(
    ("field", "kind"), [("budget", BudgetFields), ("forked_from", ForkPointFields), ("workspace", GitFields)]
)
def test_inner_objects_are_typed_with_the_fields_that_a_worker_reads(field: str, kind: type) -> None:
    with pytest.raises(errors.BadRequest) as caught:
        read_request({"task": "t", field: {"xyzxyz": 1}})
    unknown = caught.value.message.partition("unknown field")[2].split(";")
    known = next(part.partition("known: ")[2].split(", ") for part in unknown if "known: " in part)
    assert sorted(kind.__annotations__) == known


def test_a_typed_result_holds_the_answer_as_a_value_of_the_type() -> None:
    result = typed(RESULT, Report)
    assert isinstance(result, TypedResult)
    assert result.structured_output == Report(title="t")
    assert (result.status, result.output, result.turns) == (RunStatus.COMPLETED, RESULT.output, 1)


def test_a_result_without_an_answer_has_none_and_a_schema_leaves_it_as_it_is() -> None:
    without = typed(TypedResult(**{name: getattr(RESULT, name) for name in RESULT.__dataclass_fields__}), Report)
    assert without.structured_output == Report(title="t")
    assert typed(RESULT, {"type": "object"}) is RESULT


def test_an_answer_that_the_type_refuses_is_an_error_that_carries_it() -> None:
    with pytest.raises(errors.OutputSchemaError, match=r"not a valid Other: `missing`") as caught:
        typed(RESULT, Other)
    assert caught.value.context["answer"] == RESULT.output
