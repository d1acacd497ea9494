"""What all pages show: each command is understood and runs on one stack, each program runs, each file can be read.

A page with examples that need more than that has a test of its own, `test_docs_PAGE.py`. Its commands are only parsed
here, as are those of the tutorial: `acceptance/test_tutorial.py` types each of its lines. Commands that start and stop
stacks are run by `acceptance/test_stack.py`.
"""

import ast
import asyncio
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final
from uuid import uuid4

import pytest
import yaml
from pydantic import BaseModel, TypeAdapter
from temporalio.client import Client
from typer.main import get_group

from loom.activities.toolbox.built_in.delegation import DelegateTask
from loom.activities.toolbox.built_in.plan import CreatePlan
from loom.app.forms.agent import AgentForm
from loom.app.forms.crew import CrewForm
from loom.app.forms.eval_case import CaseForm
from loom.cli.main import LazyCommand, build_app
from loom.client import LoomClient
from loom.composition.load_settings import load_settings, read_settings
from loom.composition.settings import Settings
from loom.exit_codes import COMPLETED
from loom.serve.access.approval_policy import ApprovalPolicy
from loom.serve.problems import Problem
from loom.testing.harness import Addresses, settings_for
from loom.testing.model_server import SeenRequest, ThreadedModelServer, ToolUse, calls, text
from loom.testing.waiting import eventually
from loom.testing.worker_processes import Workers, environment
from loom.workflows.validation import RunForm
from tests.commands import Commands, commands_in
from tests.docs_pages import PAGES, ROOT, SHELLS, Block, Command, blocks, commands, lines_of, named_commands
from tests.trees import by_task
from tests.unit.house.deployed import variables

KINDS: Final = {"dockerfile", "python", "console", "sh", "bash", "toml", "yaml", "json", "text", "mermaid"}
READ: Final[dict[str, Callable[[str], Any]]] = {"toml": tomllib.loads, "yaml": yaml.safe_load, "json": json.loads}
MODELS: Final[dict[str, Any]] = {
    "docs/access.md": ApprovalPolicy,
    "docs/crews.md": CrewForm,
    "docs/delegation.md": DelegateTask | CreatePlan,
    "docs/evaluations.md": list[CaseForm],
    "docs/http.md": Problem,
    "docs/models.md": AgentForm,
    "docs/workspaces.md": RunForm,
    "docs/zh/tutorial.md": AgentForm,
}
"""What reads the files of pages that have no test of their own, unless they are settings."""
OF_OTHERS: Final = {"docs/faces.md", "docs/operations.md", "deploy/kubernetes/README.md"}
"""Pages with files that other programs read."""
OWN_TESTS: Final = {
    *(
        f"docs/{page.stem}.md"
        for page in PAGES
        if any((ROOT / "tests").rglob(f"test_docs_{page.stem}.py".replace("-", "_")))
    ),
    *(f"docs/tutorial/{page.name}" for page in PAGES if page.parent.name == "tutorial"),
}
ORDERED: Final = "tests/integration/docs/test_docs_pages.py runs these commands in this order"
CI_HAS_NOT: Final = {
    "it needs a container engine",
    "it needs root on a machine with systemd",
    "it needs a Kubernetes cluster",
}
RUN_BY: Final = {
    "docs/contract.md": "tests/integration/docs/test_docs_pages.py",
    "docs/faces.md": "tests/integration/serve/test_docs.py",
    "docs/http.md": "tests/integration/serve/test_docs.py",
    "docs/zh/tutorial.md": "tests/acceptance/test_tutorial.py",
}
"""Which test runs a page's commands of other programs, such as `temporal` and `curl`."""
COMMANDS: Final = tuple(commands())
PROGRAMS: Final = tuple(block for block in blocks("python") if block.page not in OWN_TESTS and not block.why_not)
SHELL_COMPLETION: Final = {"--install-completion", "--show-completion"}
"""Options that only the program itself has."""
STACKS: Final = {"up", "down", "worker", "serve", "logs"}
NAMED: Final = {"RUN", "@last"}
"""How pages name a run."""
STEERING: Final = {"approve", "deny", "send", "pause", "resume", "abort", "retry"}
AWAITS: Final = 0x80
"""The flag of code that contains `await` outside of functions."""


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    assert {block.kind for block in blocks()} <= KINDS
    fences = [line for page in PAGES for line in re.findall(r"^ *(?:```|~~~)", page.read_text(), re.MULTILINE)]
    assert len(fences) == 2 * sum(1 for _ in blocks())
    assert {block.page for block in blocks("python")} > {"README.md", "docs/fork.md", "docs/operations.md"}


def test_a_block_that_is_not_run_here_names_the_test_that_runs_it_or_needs_what_ci_has_not() -> None:
    reasons = {str(block): block.why_not for block in blocks(*KINDS) if block.why_not}
    assert len(reasons) > 20
    needs = {where: why for where, why in reasons.items() if not re.match(r"tests/[\w/]+\.py ", why)}
    assert [(where, why) for where, why in needs.items() if why.partition(";")[0] not in CI_HAS_NOT] == []
    named = {path for why in (*reasons.values(), *RUN_BY.values()) for path in re.findall(r"tests/[\w/.]+\w", why)}
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def _has_a_test(block: Block, line: str) -> bool:
    """Whether a test runs this line of a block that is not marked."""
    match re.sub(r"^(?:[A-Z_]+=\S+ )+", "", line).split():
        case ["loom" | ".venv/bin/loom" | "export" | "pip" | "make", *_] | []:
            return True  # the tests below
        case [word, *_]:
            return word.startswith("#") or block.page in RUN_BY
    raise AssertionError(line)


def test_every_line_of_a_shell_has_a_test() -> None:
    here = [block for block in blocks(*SHELLS) if not (block.why_not or block.page in OWN_TESTS)]
    assert [(str(block), line) for block in here for line in lines_of(block) if not _has_a_test(block, line)] == []


def test_what_a_page_exports_makes_or_installs_exists() -> None:
    lines = [line for block in blocks(*SHELLS) for line in lines_of(block)]
    text = "\n".join(lines)
    made = set(re.findall(r"^make (\S+)", text, re.MULTILINE))
    assert {"demo", "install", "test"} <= made
    assert made <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    installed = re.findall(r"^pip install .*loom-agents\[([\w,]+)\]", text, re.MULTILINE)
    extras = {extra for each in installed for extra in each.split(",")}
    assert {"otel", "testing"} <= extras
    assert extras <= set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    set_here = [line for line in lines if re.match(r"export |[A-Z_]+=\S+ +loom ", line)]
    named = {name for line in set_here for name in re.findall(r"(?:^|\s)([A-Z][A-Z_]+)=", line)}
    assert {"LOOM_MODEL", "OPENAI_API_KEY", "TEMPORAL_NAMESPACE", "LOOM_SERVE_ORIGINS"} <= named
    assert named <= variables()


def test_every_command_and_every_option_exists() -> None:
    group: Any = get_group(build_app())
    for command in COMMANDS:
        try:
            context = group.make_context("loom", ["1" if word == "ID" else word for word in command.words])
            while hasattr(context.command, "commands") and (rest := [*context._protected_args, *context.args]):
                name, found, rest = context.command.resolve_command(context, rest)
                context = found.make_context(name, rest, parent=context)
        except Exception as error:
            error.add_note(str(command))
            raise


def test_every_command_in_a_text_and_its_options_exist() -> None:
    unknown = [(str(command), wrong) for command in named_commands() if (wrong := _unknown_words(command.words))]
    assert unknown == []


def _unknown_words(words: tuple[str, ...]) -> list[str]:
    """The commands and options that don't exist."""
    command: Any = get_group(build_app())
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        name, *rest = words
        if name not in command.commands:
            return [name]
        found = command.commands[name]
        command, words = found.load() if isinstance(found, LazyCommand) else found, tuple(rest)
    options = {"--help", *(name for each in command.params for name in (*each.opts, *each.secondary_opts))}
    named = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    return [name for name in named if name not in options and name not in SHELL_COMPLETION]


@pytest.mark.parametrize("block", list(blocks(*READ)), ids=str)
def test_every_file_can_be_read(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = READ[block.kind](block.text)
    if block.page in MODELS and not (block.kind == "toml" and set(content) <= set(Settings.model_fields)):
        assert TypeAdapter(MODELS[block.page]).validate_python(content)
    elif block.kind != "toml" or block.page in OWN_TESTS:
        assert block.page in OWN_TESTS | OF_OTHERS
    else:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "loom.toml").write_text(block.text)
        assert read_settings().model_fields_set >= set(content)


# ---- on a stack -----------------------------------------------------------------------------------------------------

APP: Final = """
from loom import LoomApp

app = LoomApp()
for name in ("writer", "analyst", "ops"):
    app.create_agent(name, tools=["list_dir"])
"""
"""The agents that pages name without showing them."""
LOOK: Final = calls(ToolUse("list_dir", {"path": "."}))
STORIES: Final = {
    "the recorded run": [
        *(calls(ToolUse("write_file", {"path": "out.txt", "content": each})) for each in "abcd"),
        text("{}"),
    ],
    "the asking run": [calls(ToolUse("write_file", {"path": "asked.txt", "content": "x"})), text("{}")],
    "Which cities": [text('["Ulm"]')],
    "": [LOOK, text("{}")],
}


@dataclass(frozen=True)
class Stack:
    """The session's servers with a worker, and the runs that commands are about."""

    settings: Settings
    env: dict[str, str]
    recorded: str
    """A completed run, which has written a file in each of its first four turns."""

    def token_id(self, loom: Commands) -> str:
        """A token that `loom tokens revoke` names."""
        return str(json.loads(loom("tokens", "add", "ann", "--role", "viewer", "--json").out)["id"])

    def checkpoint(self, loom: Commands) -> str:
        """A checkpoint of the audit log."""
        return loom("audit", "checkpoint").out.strip()

    def undo_id(self, loom: Commands) -> str:
        """The snapshot that `loom restore` names to undo it."""
        restored = loom("restore", self.recorded, "--turn", "3", "--yes", "--json")
        return str(json.loads(restored.out)["undo"])

    def waiting_for(self, command: str) -> str:
        """A run that this command can steer."""
        return asyncio.run(self._waiting_for(command))

    async def _waiting_for(self, command: str) -> str:
        async with LoomClient.connected(self.settings) as loom:
            run_id = await loom.start("the asking run")
            await eventually(lambda: _is_asked(loom, run_id))
            if command == "resume":
                await loom.pause(run_id)
            if command == "retry":
                await loom.abort(run_id)
                await loom.result(run_id)
            return run_id


async def _is_asked(loom: LoomClient, run_id: str) -> bool:
    return bool((await loom.status(run_id))["pending_approvals"])


async def _recorded(settings: Settings) -> str:
    async with LoomClient.connected(settings) as loom:
        run_id = await loom.start("the recorded run", permissions={"write_file": "allow"})
        await loom.result(run_id)
        return run_id


@contextmanager
def serving(addresses: Addresses, folder: Path) -> Iterator[Stack]:
    """A worker in a process of its own, with a scripted model."""

    def answer(request: SeenRequest) -> Any:
        return by_task(STORIES)(request)

    workspace = folder / "project"
    workspace.mkdir()
    with ThreadedModelServer(answer) as model:
        settings = settings_for(addresses, workspace, model, memory="on")
        [crew] = [block.text for block in blocks("yaml") if block.page == "docs/crews.md"]
        (folder / "registered").mkdir()
        (folder / "registered" / "research.yaml").write_text(crew)
        (folder / "docs_app.py").write_text(APP)
        more = {
            "LOOM_APP": f"{folder}/docs_app.py:app",
            "LOOM_CREWS": f"{folder}/registered",
            "LOOM_NOTIFY_COMMAND": "true",
            "LOOM_UNKNOWN_PRICE": "free",
            "ANTHROPIC_API_KEY": "sk-test",
            "ANTHROPIC_BASE_URL": model.anthropic_url,
        }
        workers = Workers(folder=folder, env=environment(settings, folder) | more)
        try:
            process = workers.spawn()
            deadline = monotonic() + 60
            while b"worker_ready" not in workers.log(0).read_bytes():
                assert process.poll() is None, workers.log(0).read_text()
                assert monotonic() < deadline
                sleep(0.05)
            yield Stack(settings=settings, env=dict(workers.env), recorded=asyncio.run(_recorded(settings)))
        finally:
            asyncio.run(workers.end())


@pytest.fixture(scope="module")
def stack(addresses: Addresses, url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with serving(replace(addresses, database=url, namespace="default"), tmp_path_factory.mktemp("docs")) as stack:
        yield stack


@pytest.fixture
def loom(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    """The command in the worker's workspace, with the files that pages name."""
    folder = Path(stack.settings.workspace)
    tool = next(b.text for b in blocks("python") if b.page == "docs/tutorial/3-tool.md")
    files = {
        "crews/research.yaml": next(b.text for b in blocks("yaml") if b.page == "docs/crews.md"),
        "handbook/guide.md": "# Rules\nBe kind.",
        "docs/handbook/guide.md": "# Rules\nBe kind.",
        "acme-handbook/guide.md": "# Rules\nBe kind.",
        "invoice.schema.json": '{"type": "object"}',
        "my_tools.py": next(b.text for b in blocks("python") if b.page == "README.md" and "LoomApp()" in b.text),
        "review_tools.py": tool,
        "tutorial/review_tools.py": tool,
        "agents/reviewer.yaml": next(b.text for b in blocks("yaml") if b.page == "docs/tutorial/4-agent.md"),
        "src/calc.py": "def add(a, b):\n    return a + b\n",
        "rules.json": '{"bash": "deny"}',
        "cases.yaml": "- name: nothing\n  task: Say nothing\n  checks:\n    - contains: '{}'\n",
        "my_workflows.py": "class Nightly: ...\ndef fetch(): ...\n",
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    monkeypatch.syspath_prepend(str(folder))
    prefixes = ("LOOM_", "TEMPORAL_", "OPENAI_", "ANTHROPIC_")
    own = {name: value for name, value in stack.env.items() if name.startswith(prefixes)}
    with commands_in(folder, monkeypatch, **own) as commands:
        yield commands


def words_for(command: Command, loom: Commands, stack: Stack) -> list[str]:
    """The command's words about what there is on the stack."""
    name = command.words[0]
    run_id = stack.waiting_for(name) if name in STEERING and NAMED & {*command.words} else stack.recorded
    known = {
        **dict.fromkeys(NAMED, run_id),
        **dict.fromkeys(("NEW", "run-41fe0a9b12c7", "run-0cb1d27e55aa"), stack.recorded),
        **dict.fromkeys(("run-b36ddf43", "run-3f"), run_id),
        **dict.fromkeys(("openai:gpt-5.2", "anthropic:claude-opus-4-5"), "openai:scripted"),
        "examples/evals/desk.yaml": f"{ROOT}/examples/evals/desk.yaml",
        "FILE": "crews/research.yaml",
        "crews/*.yaml": "crews/research.yaml",
        "ID": "1",
        "/path/to/project": str(stack.settings.workspace),
        "review_tools:app": "tutorial/review_tools.py:app",
        "reviewer": "writer",
        "S": "docs",
        "U": "ann",
    }
    made: dict[str, Callable[[], str]] = {
        "4be21c07": lambda: stack.token_id(loom),
        "1204:9b1f0c…": lambda: stack.checkpoint(loom),
        **({"ID": lambda: stack.undo_id(loom)} if name == "restore" else {}),
    }
    words = [
        made[word]() if word in made else known.get(word, word.replace("NAME", "scripted")) for word in command.words
    ]
    confirms = name == "restore" or words[:2] == ["abort", "--all"]
    return [*words, "--yes"] if confirms else words  # nobody can be asked for confirmation


@pytest.mark.parametrize(
    "command",
    [c for c in COMMANDS if not (c.words[0] in STACKS or c.block.page in OWN_TESTS or c.block.why_not)],
    ids=str,
)
def test_every_command_runs(loom: Commands, stack: Stack, command: Command) -> None:
    ran = loom(*words_for(command, loom, stack))
    assert ran.code == COMPLETED, ran.err


@pytest.mark.parametrize("block", [block for block in blocks(*SHELLS) if block.why_not == ORDERED], ids=str)
def test_commands_that_build_on_each_other_run_in_their_order(loom: Commands, stack: Stack, block: Block) -> None:
    told = ""
    for command in (each for each in COMMANDS if each.block == block):
        ran = loom(*words_for(command, loom, stack))
        assert ran.code == COMPLETED, f"{command}: {ran.err}"
        told += ran.out + ran.err
    printed = [line for line in block.text.splitlines() if not line.startswith("$ ")]
    assert [line for line in printed if line not in told] == []


@pytest.mark.usefixtures("loom")
async def test_a_schedule_is_added_in_python() -> None:
    (block,) = (block for block in blocks("python") if block.page == "docs/schedules.md")
    code = compile(block.text, "schedules.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    async with LoomClient.connected(load_settings()) as client:
        names: dict[str, Any] = {"client": client}
        await eval(code, names)
        assert names["name"] == "builds"
        await client.schedules.remove("builds")


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
@pytest.mark.usefixtures("loom")
def test_every_program_runs(stack: Stack, block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_NOTIFY_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    program = block.text
    for here, there in {
        '"/src"': repr(str(stack.settings.workspace)),
        '"reviewer"': '"writer"',
        '"localhost:7233"': repr(stack.settings.temporal_address),
        "127.0.0.1:9091": "127.0.0.1:0",
    }.items():
        program = program.replace(here, there)
    code = compile(program, "page.py", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if not code.co_flags & AWAITS:
        exec(code, {"__name__": "page"})
        return

    class Review(BaseModel):
        verdict: str = ""

    async def run() -> None:
        async with LoomClient.connected(load_settings()) as client:
            await eval(code, {"loom": client, "run_id": stack.recorded, "Review": Review, "Client": Client})

    asyncio.run(run())


def test_the_contract_s_commands_run_without_loom(stack: Stack) -> None:
    [block] = [block for block in blocks("console") if block.page == "docs/contract.md"]
    run_id = f"docs-{uuid4().hex[:8]}"
    temporal = str(Path(sys.executable).parent / "temporal")
    for line in block.text.replace("\\\n", " ").splitlines():
        words = [{"my-run": run_id, "loom": stack.settings.task_queue}.get(word, word) for word in shlex.split(line)]
        program, *rest = words
        assert program == "temporal"
        ran = subprocess.run(
            [temporal, *rest, "--address", stack.settings.temporal_address],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ran.returncode == 0, f"{line}: {ran.stderr}"
