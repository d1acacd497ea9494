"""A parser for shell commands. The permission rules for `bash` rely on it.

`parser` finds every command in a command line. It uses `words`, `wrappers` and `doubts` for the individual steps.
"""
