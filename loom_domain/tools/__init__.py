"""Support for specific kinds of tools: MCP servers, the to-do list, sandbox limits, and the detection of repeated
calls.

`core.tool_calls` defines tool calls. `machine.tool_results` handles their results. The calls are executed outside the
domain, in `activities/toolbox`.
"""
