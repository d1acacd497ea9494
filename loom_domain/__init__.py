"""Loom's domain rules: pure values and pure decisions, without a clock, I/O or a framework.

Read the sub-packages in this order. Each sub-package's docstring introduces its modules.

    core          messages, tool calls, tasks, requests and errors: the basis for everything else
    permissions   permission rules, and the verdict that they give on a tool call
    tools         to-do lists, loops of repeated calls, MCP servers, sandbox limits
    skills        folders with instructions that a model loads on demand
    agents        definitions of agents, their inheritance, and the spec that a run is pinned to
    tree          the runs of one tree and the budget that they share
    run           the values that describe a run: its state, events, actions and activity payloads
    machine       the state machine of a run: `next_action(state)` and `evolve(state, event)`
    context       the context of a model call, kept within the model's window
    crews         several agents that work on one task
    memory        memories of past runs, and knowledge bases
    history       a run as read from Temporal's history: its turns, tasks and forks
    web           URLs, and the addresses that a request may access

docs/glossary.md defines the terms, and docs/architecture.md follows a run through the code.
"""
