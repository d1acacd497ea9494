"""The rules of Loom: pure values and pure decisions, no clock, no I/O, no framework.

Reading order
    messages      what a conversation is made of
    tool_calls    what a model may ask for, what was planned for it, what came of it
    subjects      what a call touches: commands, files, hosts
    patterns      how a rule spells them
    rules         one entry of a permission mapping: the tools it names, the pattern it has
    guards        what asks although a rule allows it
    permissions   may this call run? (allow, ask, deny) and which rule says so
    ancestry      the same for a sub-agent, who never may more than those above it
    dead_rules    rules that can never match; tools that a model need not see
    agents        the definition that a run is pinned to
    agent_definitions  an agent by name, as a module or a file says it; what it leaves open the default agent says
    hooks         what a user's code may have against a call
    mcp           servers whose tools are offered, and how far they are trusted
    requests      what a caller asks for and what it gets back
    run_state     the one value that is a run: query answer, continue-as-new input, test fixture
    run_steps     the actions a run can take next and the events that can happen to it
    run           next_action(state) and evolve(state, event): the whole machine
    thinking      the part of it after a model call that failed: again, shortened, by another model
    acting        the part of it inside a turn: from tool calls to their results
    steering      the part of it that people move: approve, deny, pause, abort, speak
    compressing   the part of it when the context is full: put off, compress, go on
    tokens        estimating what a model will count
    grouping      which messages belong together: calls and their results
    older_results what of old tool results stays
    assembling    a context made of parts with priorities, within a budget
    context       what one model call sees, and why
    sections, compression, window    the summary, making it, and what is learned of the window
    limits        turns, tokens, money, calls, time
    retries       after a failed activity: again, later, or never
    todos         what the model says it has to do
    transcript    naming a conversation by its digest, so that it enters history once
    tasks         the unit of communication
    routing       which handlers a task goes to
    history_facts, rebuilding, catching_up    tasks made again from what Temporal recorded
    past          a run turn by turn, from the same
    addresses, web_urls    where a request may go, and how a URL is read
    chunks, document_sections, knowledge    documents cut into passages, and finding them
    memory, memory_content, memory_importance, memory_scopes, lexemes, ranking    what is kept of runs, and finding it
    errors        everything that can go wrong, by type

Glossary
    run           one agent execution, one workflow id
    turn          one model call and the tool calls it asked for
    session       runs that share a conversation
    verdict       allow, ask or deny; the answer of the rules to one tool call
    approval      a person's answer to an ask, bound to one exact call by its digest
    plan          what the registry and the rules say of one tool call, recorded with the model's answer
    attempt       one try of one activity; a new attempt starts a new segment of the stream
    spec          the agent as resolved at the start of a run, pinned into it
    task          one entry of the stream: something a node did, or is asked to do
"""
