"""Tools of MCP servers.

`servers` connects to all servers of a worker, and `connection` keeps one of them connected over its `transport`.
`results` converts what a server returns, and `tool_cache` remembers its tools. `process_guard` runs a server's program
so that none of its processes outlives the worker.
"""
