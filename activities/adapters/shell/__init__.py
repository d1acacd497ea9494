"""A parser for shell commands. The permission rules for `bash` rely on it.

`parser` finds every command in a line; `words`, `wrappers` and `doubts` are its steps.
"""
