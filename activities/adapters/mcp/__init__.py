"""Tools of MCP servers.

`servers` connects to all of a worker's servers. `connection` maintains the connection to one server over its
`transport`. `results` converts the results that a server returns, and `tool_cache` caches the list of its tools.
`process_guard` runs a server's program and ensures that none of the program's processes outlives the worker.
"""
