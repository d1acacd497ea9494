"""Validate an agent's fields, which come from a file or Python code, and build the agent's definition.

The JSON Schema of agent files is generated from this form (`loom validate --schema agent`, docs/schemas/agent.json).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Required, TypeAlias

from pydantic import Discriminator, Field, Tag, ValidationError
from typing_extensions import TypedDict

from loom.activities.output_schema import OutputSchema
from loom.app.forms.form import Count, Form, Model, Name, Verdict, explained
from loom.app.output_types import schema_of
from loom.domain.agents.definitions import AgentDefinition
from loom.domain.agents.inheritance import inherit
from loom.domain.agents.limits import (
    LONGEST_MODEL_WAIT,
    LONGEST_TOOL_CALL,
    MOST_KEPT_TURNS,
    MOST_LOOPED_TURNS,
    MOST_PARALLEL_CALLS,
    MOST_PASSAGES,
    MOST_TOOL_ATTEMPTS,
)
from loom.domain.agents.reflection import MOST_ROUNDS
from loom.domain.agents.spec import Activation, AgentConfig, KnowledgeLimit
from loom.domain.core.errors import BadRequest
from loom.domain.core.model_options import LEAST_THINKING, MOST_STOPS, read_model_options
from loom.domain.core.requests import LONGEST_RUN, Budget, ModelOptions, ReasoningEffort
from loom.domain.crews.crew import FEWEST_BRANCHES, MOST_BRANCHES, MOST_LEVELS
from loom.domain.permissions.judge import Mode
from loom.domain.permissions.rules import parse_rules
from loom.request_fields import ModelOptionFields

Delay: TypeAlias = Annotated[float, Field(gt=0, le=86_400)]
Share: TypeAlias = Annotated[float, Field(gt=0, le=1)]
ToolTimeout: TypeAlias = Annotated[float, Field(gt=0, le=LONGEST_TOOL_CALL)]
Section: TypeAlias = Literal[
    "background_context",
    "key_decisions",
    "tool_usage_log",
    "user_intent_evolution",
    "execution_results",
    "errors_and_solutions",
    "open_issues",
    "future_plans",
]


class BudgetForm(Form):
    """The spending limits of the agent's runs. A limit in the request takes precedence."""

    tokens: Count | None = Field(None, description="Total input and output tokens of all model calls.")
    cost_usd: Annotated[float, Field(gt=0)] | None = Field(None, description="Cost in US dollars.")
    tool_calls: Count | None = Field(None, description="Number of tool calls.")
    seconds: Annotated[float, Field(gt=0, le=LONGEST_RUN)] | None = Field(
        None, description="Elapsed time in seconds, including waits."
    )


class ModelOptionsForm(Form):
    """Options of model calls. Omitted options come from the extended agent, or else from the provider."""

    reasoning_effort: ReasoningEffort | None = Field(None, description="How much the model thinks.")
    thinking_budget: Annotated[int, Field(ge=LEAST_THINKING)] | None = Field(
        None, description="Maximum number of tokens for thinking, as a part of max_output_tokens. Anthropic only."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(None, description="Share of nucleus sampling.")
    seed: int | None = Field(None, description="Seed of sampling. OpenAI's chat completions only.")
    stop: Annotated[list[str], Field(max_length=MOST_STOPS)] = Field([], description="Texts at which the model stops.")
    parallel_tool_calls: bool | None = Field(None, description="If false, the model makes one tool call per turn.")
    extra_body: dict[str, Any] = Field({}, description="Fields to add to the body of each request to the provider.")
    extra_headers: dict[str, str] = Field({}, description="Headers to add to each request to the provider.")
    accepts: list[Literal["text", "image", "pdf", "audio"]] = Field(
        [], description="What the model takes besides text. Default: what Loom knows of the provider and the model."
    )


class CompressionForm(Form):
    """When and how a conversation that is too long is compressed. Shares refer to the context window."""

    threshold: Share | None = Field(None, description="Compress the conversation above this share of the window.")
    warn_at: Share | None = Field(None, description="Warn the model and people above this share of the window.")
    collapse_at: Share | None = Field(None, description="Shorten old tool results above this share of the window.")
    target: Share | None = Field(None, description="Maximum share of a conversation that remains after compression.")
    keep_turns: Annotated[int, Field(ge=1, le=MOST_KEPT_TURNS)] | None = Field(
        None, description="Number of last turns to keep word for word, unless they don't fit."
    )
    sections: Annotated[list[Section], Field(min_length=1)] | None = Field(
        None, description="Sections of the summary. Default: all."
    )
    section_tokens: Count | None = Field(None, description="Maximum number of tokens in one section.")


class KnowledgeForm(Form):
    """A knowledge base with its own limits."""

    base: Name = Field(description="The name of the knowledge base.")
    number: Annotated[int, Field(ge=1, le=MOST_PASSAGES)] | None = Field(
        None, description="Maximum number of passages for each message from a person."
    )
    floor: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None,
        description="Minimum relevance of a passage: its cosine similarity to the message, or the share of the"
        " message's words that it contains, whichever is larger.",
    )


def _form_of_knowledge(given: Any) -> str:
    return "[name]" if isinstance(given, str) else "[base]"


KnowledgeEntry: TypeAlias = Annotated[
    Annotated[Name, Tag("[name]")] | Annotated[KnowledgeForm, Tag("[base]")], Discriminator(_form_of_knowledge)
]


class AgentForm(Form):
    """An agent. Omitted fields come from the agent that it extends, or from the worker's settings."""

    kind: Literal["agent"] = Field("agent", description="The kind of definition in this file.")
    name: Name | None = Field(
        None, description="The name for use in requests. Default: the file's name without its suffix."
    )
    description: str = Field(
        "", description="The agent's strengths. People and models read this text to choose an agent."
    )
    extends: Name | None = Field(None, description="The agent that provides all omitted fields.")
    model: Model | None = Field(None, description="The model: openai:NAME, anthropic:NAME or demo.")
    fallbacks: list[Model] = Field(
        [], description="Fallback models. Each one takes over if the previous model doesn't respond."
    )
    system_prompt: str = Field("", description="The first layer of the prompt. Loom adds skills and its own rules.")
    tools: list[str] | None = Field(
        None,
        description="Names of the agent's tools. mcp__SERVER includes all tools of that server. Default: all tools.",
    )
    extra_tools: list[str] = Field([], description="Tools to add to `tools` or to the extended agent's tools.")
    disabled_tools: list[str] = Field(
        [], description="Tools to remove from the agent and from all agents that extend it."
    )
    enabled_skills: list[str] = Field([], description="Skills that the agent always has.")
    disabled_skills: list[str] = Field(
        [], description="Skills to remove from the agent and from all agents that extend it."
    )
    activation: Literal["hybrid", "explicit", "auto"] | None = Field(
        None,
        description="The skills of a run. hybrid: the enabled skills, and others if there is space. auto: the same,"
        " without a preference for the enabled skills. explicit: only the enabled skills.",
    )
    knowledge: list[KnowledgeEntry] = Field(
        [],
        description="Knowledge bases to search whenever a person sends a message: names, or tables with `base`,"
        " `number` and `floor`.",
    )
    permissions: dict[str, Verdict] = Field(
        {}, description="Permission rules to merge over those of the extended agent."
    )
    mode: Literal["default", "read-only", "accept-edits", "bypass"] | None = Field(
        None, description="The permission mode."
    )
    max_turns: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        None, description="Maximum number of turns per run."
    )
    budget: BudgetForm = Field(BudgetForm(), description="Spending limits for each run.")
    max_output_tokens: Count | None = Field(None, description="Maximum number of output tokens per model call.")
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(None, description="Sampling temperature.")
    model_options: ModelOptionsForm = Field(ModelOptionsForm(), description="Options of the agent's model calls.")
    context_window: Annotated[int, Field(ge=1000)] | None = Field(
        None, description="Size of the model's context window in tokens."
    )
    compression: CompressionForm = Field(
        CompressionForm(), description="When and how a conversation that is too long is compressed."
    )
    loop_window: Annotated[int, Field(ge=0, le=MOST_LOOPED_TURNS)] | None = Field(
        None, description="Stop a run after this number of turns with identical calls and results. 0: never."
    )
    shown_tools: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="Maximum number of tools that the model is shown. If there are more, it searches for the others.",
    )
    shown_tool_tokens: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Maximum number of tokens in the descriptions of the tools that the model is shown."
    )
    parallel_limit: Annotated[int, Field(ge=1, le=MOST_PARALLEL_CALLS)] | None = Field(
        None, description="Maximum number of read-only tool calls that a turn runs concurrently."
    )
    rpm: Count | None = Field(
        None, description="Maximum number of requests per minute to one model, for all runs of the agent together."
    )
    tpm: Count | None = Field(
        None, description="Maximum number of tokens per minute to one model, for all runs of the agent together."
    )
    approval_timeout: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Seconds that a call waits for a person's approval before it is denied."
    )
    model_attempts: Count | None = Field(
        None, description="Attempts at a model call before a fallback model takes over or the run waits."
    )
    first_retry_delay: Delay | None = Field(
        None, description="Seconds between the first two attempts. The delay doubles for each further attempt."
    )
    longest_retry_delay: Delay | None = Field(None, description="Longest delay in seconds between two attempts.")
    model_timeout: Annotated[float, Field(gt=0, le=LONGEST_MODEL_WAIT)] | None = Field(
        None, description="Seconds without data from a provider after which an attempt at a model call has failed."
    )
    tool_attempts: Annotated[int, Field(ge=1, le=MOST_TOOL_ATTEMPTS)] | None = Field(
        None,
        description="Attempts at a call that fails, for tools that only read or are idempotent. The delays are those of"
        " model calls.",
    )
    tool_timeout: ToolTimeout | None = Field(
        None,
        description="Timeout of each tool call in seconds, in place of the tools' own. A tool with a shorter limit of"
        " its own keeps it.",
    )
    tool_timeouts: dict[str, ToolTimeout] = Field(
        {},
        description="Timeouts of calls to single tools in seconds, by the tool's name. mcp__SERVER stands for all tools"
        " of that server.",
    )
    priority: Annotated[int, Field(ge=1, le=5)] | None = Field(
        None, description="Priority of the agent's runs, from 1, which goes first, to 5."
    )
    patience: Annotated[float, Field(ge=0, le=LONGEST_RUN)] | None = Field(
        None,
        description="Seconds that a run waits for its provider, or for a person who must correct a key or a quota,"
        " before it fails. 0: never wait.",
    )
    require_done_tool: bool | None = Field(None, description="If true, only the `done` tool ends a run.")
    output_schema: dict[str, Any] | None = Field(None, description="JSON Schema that final answers must match.")
    pattern: Literal["react", "reflect", "tree"] | None = Field(
        None,
        description="The reasoning pattern: react, reflect (criticize and revise each answer) or tree (run several"
        " branches in parallel and use the best answer).",
    )
    rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)] | None = Field(
        None,
        description=f"Number of rounds in the reflect and tree patterns. Maximum for tree: {MOST_LEVELS}.",
    )
    branches: Annotated[int, Field(ge=FEWEST_BRANCHES, le=MOST_BRANCHES)] | None = Field(
        None, description="Number of parallel branches in the tree pattern."
    )
    evaluate: bool | None = Field(
        None, description="If true, the agent's model rates each answer in an additional call."
    )
    hooks: list[str] = Field(
        [], description="Names of hooks and interceptors to add that don't already apply to all agents."
    )


_CONFIG: Final = ("enabled_skills", "disabled_skills", "extra_tools", "disabled_tools")
_LISTS: Final = ("fallbacks", "hooks")
_COMPRESSION: Final = {"threshold": "compress_at", "target": "compress_target"}
"""The names of the definition's fields that differ from those of `CompressionForm`."""


def read_agent(given: Mapping[str, Any], *, name: str, origin: str) -> AgentDefinition:
    """Return the definition of an agent.

    Raises BadRequest if the fields are invalid. The error names the origin, the field, the problem and a fix.
    """
    problems = list(complaints(given, where=f"agent {name!r} ({origin})"))
    if problems:
        raise BadRequest("\n".join(problems), field="agent")
    form = AgentForm.model_validate(given)
    said = {
        field: getattr(form, field)
        for field in AgentForm.model_fields
        if field not in ("kind", "evaluate", "compression", *_CONFIG)
    }
    bases = [KnowledgeForm(base=each) if isinstance(each, str) else each for each in form.knowledge]
    compression = form.compression.model_dump()
    return AgentDefinition(
        **{
            **said,
            **{field: tuple(said[field]) for field in _LISTS},
            **{_COMPRESSION.get(field, field): value for field, value in compression.items()},
            "sections": tuple(form.compression.sections or ()),
            "knowledge": tuple(each.base for each in bases),
            "knowledge_limits": {
                each.base: KnowledgeLimit(number=each.number, floor=each.floor)
                for each in bases
                if each.number is not None or each.floor is not None
            },
            "name": form.name or name,
            "evaluates": form.evaluate,
            "extends": form.extends or "",
            "tools": None if form.tools is None else tuple(form.tools),
            "mode": None if form.mode is None else Mode(form.mode),
            "budget": Budget(**form.budget.model_dump()),
            "model_options": _options(form.model_options),
            "activation": None if form.activation is None else Activation(form.activation),
            "config": inherit(
                AgentConfig(),
                add_skills=form.enabled_skills,
                remove_skills=form.disabled_skills,
                add_tools=form.extra_tools,
                remove_tools=form.disabled_tools,
            ),
            "origin": origin,
        }
    )


def complaints(given: Mapping[str, Any], *, where: str) -> Iterator[str]:
    """Yield each error in an agent's fields as one sentence."""
    if odd := [key for key in given if not isinstance(key, str)]:
        yield f"{where}: the key {odd[0]!r} is not text: put it in quotes"
        return
    try:
        form = AgentForm.model_validate(given)
    except ValidationError as error:
        yield from (f"{where}: {explained(problem, _fields_at)}" for problem in error.errors(include_url=False))
        return
    yield from (f"{where}: {problem}" for problem in _problems_inside(form))
    if form.pattern == "tree" and form.rounds is not None and form.rounds > MOST_LEVELS:
        yield f"{where}: rounds {form.rounds} must be at most {MOST_LEVELS} with the tree pattern"
    if form.branches is not None and form.pattern not in (None, "tree"):
        yield f"{where}: branches need the tree pattern, but the pattern is {form.pattern}: remove one of them"
    yield from (f"{where}: {problem}" for problem in _contradictions(form))


def _contradictions(form: AgentForm) -> Iterator[str]:
    """Yield the pairs of fields that can't both have an effect."""
    names = [each if isinstance(each, str) else each.base for each in form.knowledge]
    yield from (f"knowledge: {name!r} occurs twice" for name in dict.fromkeys(names) if names.count(name) > 1)
    begins, warns = form.compression.threshold, form.compression.warn_at
    if begins is not None and warns is not None and warns >= begins:
        yield f"compression.warn_at {warns:g} must be below compression.threshold {begins:g}: no warning would come"
    first, longest = form.first_retry_delay, form.longest_retry_delay
    if first is not None and longest is not None and first > longest:
        yield f"first_retry_delay {first:g} must be at most longest_retry_delay {longest:g}"


def _problems_inside(form: AgentForm) -> Iterator[str]:
    """Yield the errors in fields that have rules of their own."""
    try:
        parse_rules(form.permissions)
    except BadRequest as error:
        yield f"permissions: {error.message}"
    try:
        _options(form.model_options)
    except BadRequest as error:
        yield error.message
    try:
        if form.output_schema is not None:
            OutputSchema(form.output_schema)
    except BadRequest as error:
        yield error.message


def _options(form: ModelOptionsForm) -> ModelOptions:
    return read_model_options(form.model_dump(exclude_defaults=True), "model_options")


def _fields_at(location: Sequence[int | str]) -> Sequence[str]:
    inner: dict[str, type[Form]] = {
        "budget": BudgetForm,
        "model_options": ModelOptionsForm,
        "compression": CompressionForm,
        "knowledge": KnowledgeForm,
    }
    return sorted(inner.get(str(location[0]), AgentForm).model_fields)


class CompressionFields(TypedDict, total=False):
    """When and how a conversation that is too long is compressed."""

    threshold: float
    warn_at: float
    collapse_at: float
    target: float
    keep_turns: int
    sections: Sequence[Section]
    section_tokens: int


class KnowledgeFields(TypedDict, total=False):
    """A knowledge base with its own limits."""

    base: Required[str]
    number: int
    floor: float


class AgentFields(TypedDict, total=False):
    """The keyword arguments of `LoomApp.create_agent`."""

    description: str
    extends: str
    model: str | None
    fallbacks: Sequence[str]
    system_prompt: str
    tools: Sequence[str] | None
    extra_tools: Sequence[str]
    disabled_tools: Sequence[str]
    enabled_skills: Sequence[str]
    disabled_skills: Sequence[str]
    activation: Literal["hybrid", "explicit", "auto"] | None
    knowledge: Sequence[str | KnowledgeFields]
    permissions: Mapping[str, str] | None
    mode: Literal["default", "read-only", "accept-edits", "bypass"] | None
    max_turns: int | None
    budget: Mapping[str, float]
    max_output_tokens: int | None
    temperature: float | None
    model_options: ModelOptionFields
    context_window: int | None
    compression: CompressionFields
    loop_window: int | None
    shown_tools: int | None
    shown_tool_tokens: int | None
    parallel_limit: int | None
    rpm: int | None
    tpm: int | None
    approval_timeout: float | None
    model_attempts: int | None
    first_retry_delay: float | None
    longest_retry_delay: float | None
    model_timeout: float | None
    tool_attempts: int | None
    tool_timeout: float | None
    tool_timeouts: Mapping[str, float]
    priority: int | None
    patience: float | None
    require_done_tool: bool | None
    output: Any
    """The type of the agent's answers, such as a pydantic model, or a JSON Schema. In a file, use `output_schema`."""
    pattern: Literal["react", "reflect", "tree"] | None
    rounds: int | None
    branches: int | None
    evaluate: bool | None
    hooks: Sequence[str]


def plain_fields(fields: AgentFields) -> dict[str, Any]:
    """Convert Python values to the types that a file contains. None counts as not set."""
    given = {name: value for name, value in fields.items() if value is not None}
    if "output" in given:
        given["output_schema"] = schema_of(given.pop("output"))
    return {name: _plain(value) for name, value in given.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple | set | frozenset) else value
