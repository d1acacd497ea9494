"""A tree of runs as values: where a run comes from, its children, and the budget that they share.

A child gets its `lineage` at its start. `tree` holds what a run knows about its children, `signals` what the runs of a
tree send each other, `events` what can happen between them, `budget` and `budget_shares` the amounts that are lent and
returned. How a run reacts to any of this is in `machine.delegation` and `machine.tree_sync`.
"""
