"""A data set for `loom eval`: what a desk answers from its handbook. It runs with the `demo` model and with others."""
