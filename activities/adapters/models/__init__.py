"""Model providers and the prices of their models.

`openai_provider` and `anthropic_provider` implement `LLMProvider` for all compatible servers. They read replies with
`event_stream`, `sent_errors`, `openai_reply`, `anthropic_reply` and `thinking`. `wire` contains their shared code,
`providers` creates them from the settings, and `demo` is a model that works without a key.
"""
