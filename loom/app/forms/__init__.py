"""Validated forms of agents, crews and hooks, as users write them in Python or in a file.

`form` contains shared code. `agent`, `crew`, `hook` and `handler` validate their fields and build the definitions.
"""
