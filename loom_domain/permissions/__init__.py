"""Permission rules: may this tool call run?

Start with `judge`: one pure function answers allow, ask or deny and names the rule that decided. `rules` parses a rule,
`patterns` matches it against `subjects` (commands, files, hosts), `guards` asks although a rule allows, `judge_under`
limits a child run to what the runs above it may do, and `dead_rules` finds rules that can never match.
"""
