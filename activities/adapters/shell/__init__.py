"""A parser for shell commands, on which the permission rules for `bash` rely.

`parser` finds every command in a line; `words`, `wrappers` and `doubts` are its steps.
"""
