"""A small app: tools as functions and in class form, an agent, a hook. Serve it with

loom worker --app examples.tools.shop:app
"""
