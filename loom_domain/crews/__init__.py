"""Crews: several agents that work on one task, in sequence, in parallel, coordinated, routed, or as a tree.

`crew` defines a crew; `next_step` decides what it does next from its `log` alone. `prompts` is what members are told,
`routing` picks a member, `scoring` picks an answer, `recovery` handles a member that failed.
"""
