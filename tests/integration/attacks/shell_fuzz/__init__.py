"""A fuzzer of the shell rules: it writes lines in Bash's grammar, asks the rules about each, lets a real Bash run those
that are allowed, and reports every line that ran a program that its rules do not name.

`grammar` writes the lines, `rule_sets` says what each rule set names, and `arena` is the sandbox in which every program
is a stub that only says that it ran. `hunt` brings the three together.
"""
