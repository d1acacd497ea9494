"""The values that everything else is made of: messages, tool calls, tasks, requests, errors.

They know nothing of runs, agents or Temporal. `messages` comes first, then `tool_calls` and `requests`; `errors` is the
whole tree of what can go wrong, `digests` names values by their content, `transcript` names a conversation the same
way, and `tasks` is the unit of communication on the bus.
"""
