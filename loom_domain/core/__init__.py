"""The basic value types of the domain: messages, tool calls, tasks, requests, and errors.

These modules do not depend on runs, agents, or Temporal. `messages` defines messages, transcripts, and the digests that
identify them. `tool_calls` and `requests` build on this module. `errors` defines every error type, and `tasks` defines
the unit of communication on the bus.
"""
