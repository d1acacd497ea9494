"""The context of a model call: what the model sees, and how it is kept within its window.

`model_context` builds it with the `assembler` and shortens old tool results. `compression` replaces old messages with a
summary of eight sections (`summary_sections`), and `recall` adds what memory and knowledge bases bring.
"""
