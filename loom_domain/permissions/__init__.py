"""Permission rules: may this tool call run?

Start with `judge`: one pure function returns allow, ask or deny and names the rule that decided. `rules` parses a rule,
`patterns` matches it against `subjects` (commands, files, hosts), `guards` ask although a rule allows, `ancestor_rules`
limits a child run by the runs above it, and `dead_rules` finds rules that can never match.
"""
