"""Agents: their definitions, inheritance between them, and the spec that is pinned into a run.

`definitions` contains agents as users define them. `inheritance` completes a definition from the agent that it extends.
`spec` is the resulting spec that a run is pinned to, with its skills, tools and rules. `sub_agent` derives a child
run's agent, and `hooks` contains the user's code that runs around runs and tool calls.
"""
