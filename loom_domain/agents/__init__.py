"""Agents: their definitions, how they inherit from each other, and what is pinned into a run.

`definitions` is an agent as a user writes it, `inheritance` completes it from the agent it extends, and `spec` is the
result that is pinned into a run. `skill_selection` picks the skills of a run. `sub_agent` derives the agent of a child
run; `hooks` are a user's own code around runs and tool calls.
"""
