"""The values that everything else is made of: messages, tool calls, tasks, requests, errors.

They know nothing of runs, agents or Temporal. `messages` comes first: messages, transcripts, and the digests that name
them; then `tool_calls` and `requests`. `errors` is the whole tree of what can go wrong, and `tasks` is the unit of
communication on the bus.
"""
