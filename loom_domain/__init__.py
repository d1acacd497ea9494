"""The rules of Loom: pure values and pure decisions, no clock, no I/O, no framework.

Reading order
    messages      what a conversation is made of
    digests       short names for values
    tool_names    the tools that a run knows by name
    tool_calls    what a model may ask for, what was planned for it, what came of it
    subjects      what a call touches: commands, files, hosts
    patterns      how a rule spells them
    rules         one entry of a permission mapping: the tools it names, the pattern it has
    guards        what asks although a rule allows it
    permissions   may this call run? (allow, ask, deny) and which rule says so
    risk          what a call may do, for whoever is asked about it
    ancestry      the same for a sub-agent, who never may more than those above it
    dead_rules    rules that can never match; tools that a model need not see
    agent_config  skills and tools of an agent, and what of them a child inherits
    budget        amounts, shares, and what a wish for more is granted
    agents        the definition that a run is pinned to
    autonomy      Loom's own layer of every prompt
    agent_definitions  an agent by name, as a module or a file says it; what it leaves open the default agent says
    manifest      what a run was prepared with, part by part
    extending     agents that take from others what they leave open
    sandbox       what one command may use up
    lifecycle     a user's code around a run, step by step
    hooks         what a user's code may have against a call
    mcp           servers whose tools are offered, and how far they are trusted
    requests      what a caller asks for and what it gets back
    lineage       what a child run is told of where it comes from
    tree          a run's relatives: its children, letters to them and to its parent, its share
    run_state     the one value that is a run: query answer, continue-as-new input, test fixture
    work          what a run hands to its activities and gets back
    run_actions   what a run can do next
    run_events    what can happen to it
    run           next_action(state) and evolve(state, event): the whole machine
    turns         the part of it before a model speaks: limits, and what it is told
    starting      the part of it before the first turn and after the end: hooks
    loops         going round in circles: the same calls with the same results
    output_schema an answer that has to be JSON of a given schema: found, and told what is wrong
    reflecting    drafts, critiques, revisions
    answers       the part of it after a final answer: taken, sent back, criticised
    evaluating    the part of it after that: having the answer rated
    evaluation    what the model is asked for that, and reading what it says
    branching     an agent as several branches of itself
    run_options   what one request wants otherwise than its agent
    thinking      the part of it after a model call that failed: again, shortened, by another model
    acting        the part of it inside a turn: from tool calls to their results
    steering      the part of it that people move: approve, deny, pause, abort, speak
    asks          every call of the tree that waits for a person, each under a name of its own
    relations     what the runs of a tree have to tell each other
    sync_relatives      the part of the machine that tells it
    shares        the account of a share: lending, granting, asking for more
    delegation    the part of the machine from a call to a child run, and from its end to the call's result
    sub_agents    the agent of a child: never more than those above it
    wrapping_up   the part of it when something is used up: more, or one last answer
    status        what a run says of itself
    window        what a run has learned of its model's window
    sections      a summary: what it has to say, and reading what a model wrote
    compression   making a conversation shorter with one
    compressing   the part of it when the context is full: put off, compress, go on
    asking        the requests to activities, from the state alone
    tokens        estimating what a model will count
    grouping      which messages belong together: calls and their results
    older_results what of old tool results stays
    assembling    a context made of parts with priorities, within a budget
    context       what one model call sees, and why
    skills        folders of instructions, and what a run keeps of them
    skill_choice  which ones a run has, and which fit its task
    skill_documents, skill_scripts   the text of a SKILL.md; scripts that are tools
    skill_context, active_skills     what a model call sees of skills; those whose instructions a conversation has
    deadlines     when a run's time is over, and what of it is kept for the last answer
    limits        turns, tokens, money, calls, time
    retries       after a failed activity: again, later, or never
    todos         what the model says it has to do
    transcript    naming a conversation by its digest, so that it enters history once
    tasks         the unit of communication
    routing       which handlers a task goes to
    agent_stats   what an agent's runs have come to
    search_attributes  what lists of runs can be asked for
    telling       what the stream is told of each step
    history_facts what Temporal recorded of a run, decoded
    rebuilding    tasks made again from that
    catching_up   asking for it, and the answer
    past          a run turn by turn, from the same
    forks         a new run from one of its turns
    crews         several agents on one task
    crew_log      what a crew has done so far, from its own conversation
    crew_prompts  what its members are told, and reading what a coordinator answers
    crew_routing  who gets a task, and why
    crew_recovery what follows when a member fails
    crew_scoring  which of several answers is the best
    crew_actions  what a crew can do next
    crew_branches the same in a tree: branches, their judge, the next level
    crew_steps    next_step(crew, log): what a crew does next
    run_diffs     two runs beside each other
    addresses, web_urls    where a request may go, and how a URL is read
    chunks, document_sections, knowledge    documents cut into passages, and finding them
    memory, memory_content, memory_importance, memory_scopes, lexemes, ranking    what is kept of runs, and finding it
    recalling     what a run is reminded of when a person has spoken
    near          what to say of a name that is not there
    errors        everything that can go wrong, by type

Glossary
    run           one agent execution, one workflow id
    turn          one model call and the tool calls it asked for
    session       runs that share a conversation
    tree          a root run with all runs that were delegated by it, directly or not; a child is one of its parent's
    verdict       allow, ask or deny; the answer of the rules to one tool call
    approval      a person's answer to an ask, bound to one exact call by its digest
    plan          what the registry and the rules say of one tool call, recorded with the model's answer
    attempt       one try of one activity; a new attempt starts a new segment of the stream
    skill         a folder of instructions, loaded when they are needed; active: its instructions are in the context
    spec          the agent as resolved at the start of a run, pinned into it
    task          one entry of the stream: something a node did, or is asked to do
"""
