"""The values that describe a tree of runs: a run's origin, its children, and the budget that they share.

A child receives its `lineage` when it starts. `tree` defines what a run knows about its children. `signals` defines the
signals that runs send each other, and `events` defines the resulting events. `budget` and `budget_shares` define the
amounts that runs lend and return. `machine.delegation` and `machine.tree_sync` define how a run reacts to these events.
"""
