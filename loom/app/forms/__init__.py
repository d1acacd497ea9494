"""Forms that validate the agents, crews and hooks that users define in Python or in a file.

`form` contains shared code. `agent`, `crew`, `hook` and `handler` validate their fields and build the definitions.
"""
