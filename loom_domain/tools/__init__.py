"""What a run knows about kinds of tools: MCP servers, the to-do list, sandbox limits, and loops of repeated calls.

The calls themselves are in `core.tool_calls`; how a call is carried out is in `machine.tool_results` and, outside the
domain, in `activities/toolbox`.
"""
