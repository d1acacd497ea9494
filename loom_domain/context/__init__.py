"""The context of a model call: its contents, and the methods that keep the context within the model's window.

`model_context` builds the context with the `assembler` and shortens old tool results. `compression` replaces old
messages with a summary in eight sections (`summary_sections`), and `recall` adds information from memory and knowledge
bases.
"""
