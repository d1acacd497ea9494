"""The values that everything else is made of: messages, tool calls, tasks, requests, errors.

They know nothing of runs, agents or Temporal. `messages` comes first, with digests that name values by their content;
then `tool_calls` and `requests`. `errors` is the whole tree of what can go wrong, `transcript` names a conversation by
a digest, and `tasks` is the unit of communication on the bus.
"""
