"""The open protocols that Loom speaks, each by its official library.

Read `following.py` first: what all of them do with a run. `mcp_server.py`, `agui.py` and `a2a.py` translate it.
"""
