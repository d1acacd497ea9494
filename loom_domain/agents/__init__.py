"""Agents: their definitions, inheritance between them, and the spec that is pinned into a run.

`definitions` contains agents as users define them. `inheritance` adds the settings that a definition inherits from the
agent that it extends. `spec` defines the result: the skills, tools and rules that a run is pinned to, within `limits`.
`sub_agent` derives a child run's agent, and `hooks` defines the hooks and interceptors that call user code before and
after runs and tool calls.
"""
