"""The rules of Loom: pure values and pure decisions, no clock, no I/O, no framework.

Reading order
    messages      what a conversation is made of
    tool_calls    what a model may ask for, what was planned for it, what came of it
    permissions   may this call run? (allow, ask, deny) and which rule says so
    agents        the definition that a run is pinned to
    requests      what a caller asks for and what it gets back
    run_state     the one value that is a run: query answer, continue-as-new input, test fixture
    run_steps     the actions a run can take next and the events that can happen to it
    run           next_action(state) and evolve(state, event): the whole machine
    thinking      the part of it after a model call that failed: again, shortened, by another model
    acting        the part of it inside a turn: from tool calls to their results
    steering      the part of it that people move: approve, deny, pause, abort, speak
    limits        turns, tokens, money, calls, time
    retries       after a failed activity: again, later, or never
    transcript    naming a conversation by its digest, so that it enters history once
    tasks         the unit of communication on the live stream
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
