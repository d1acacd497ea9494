"""Agents: their definitions, how they inherit from each other, and what is pinned into a run.

`definitions` is an agent as a user writes it, `inheritance` completes it from the agent it extends, and `spec` is the
result that a run is pinned to, with its skills, tools and rules. `sub_agent` derives the agent of a child run; `hooks`
are a user's own code around runs and tool calls.
"""
