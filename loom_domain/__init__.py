"""The rules of Loom: pure values and pure decisions, without a clock, I/O or a framework.

Read the sub-packages in this order. The docstring of each one introduces its modules.

    core          messages, tool calls, tasks, requests and errors, which everything else is made of
    permissions   the verdict on one tool call, and the rule that decided
    tools         to-do lists, loops of repeated calls, MCP servers, sandbox limits
    skills        folders of instructions that a model loads when it needs them
    agents        definitions of agents, their inheritance, and what a run is pinned to
    tree          the runs of one tree and the budget that they share
    run           a run as values: its state, events, actions and activity payloads
    machine       the state machine of a run: `next_action(state)` and `evolve(state, event)`
    context       the context of a model call, and how it is kept within the window
    crews         several agents that work on one task
    memory        what past runs have left, and knowledge bases
    history       what Temporal's history says about a run: its turns, its tasks, forks
    web           URLs, and which addresses a request may go to

docs/glossary.md defines the words, and docs/architecture.md follows a run through the code.
"""
