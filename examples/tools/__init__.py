"""A small app with tools as functions and as a class, an agent and a hook.

To serve it: `loom worker --app examples.tools.shop:app`
"""
