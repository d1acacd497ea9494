"""The demo model follows rules instead of calling a provider, so that you can try Loom without a key.

`scene` describes the conversation, and `model` chooses a rule that applies to it. The other modules contain the rules.
"""
