"""Random bodies of streamed replies, which real servers could send, and what the providers must read in them.

`replies` makes up what a model says. `openai_events`, `anthropic_events` and `responses_events` say it in the events of
their protocol, in one of the many ways in which servers do. `bodies` turns events into bytes, with faults. `hunt` lets
a real HTTP server send them to the real providers, and compares.
"""
