"""The values that describe a tree of runs: a run's origin, its children, and the budget that they share.

A child receives its `lineage` when it starts. `tree` holds a run's knowledge of its children. `signals` defines the
signals between runs, and `events` defines the events between runs. `budget` and `budget_shares` define the amounts that
runs lend and return. `machine.delegation` and `machine.tree_sync` define how a run reacts to these events.
"""
