"""Model providers, and the prices of their models.

`openai_provider` and `anthropic_provider` implement `LLMProvider` for all compatible servers. `wire` is what they
share, `providers` creates them from the settings, and `demo` is a stand-in without a key.
"""
