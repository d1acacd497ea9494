"""The demo model: a stand-in that follows rules, so that Loom can be tried without a key.

`model` chooses a rule for the conversation, which `scene` describes; the other modules are the rules.
"""
