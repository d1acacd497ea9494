"""Permission rules, which decide whether a tool call may run.

Start with `judge`, a pure function that returns allow, ask or deny and names the rule that decided. `rules` parses a
rule, `patterns` matches it against `subjects` (commands, files, hosts), and `guards` requires approval for dangerous
calls that a rule allows. `judge_under` limits a child run to the rights of its parent and ancestor runs, and
`dead_rules` finds rules that can never match.
"""
