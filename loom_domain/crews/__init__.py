"""Crews: several agents that work on one task, in sequence, in parallel, coordinated, routed, planned, or as branches.

`crew` defines a crew. `next_crew_action` decides what it does next from its `log` alone. `prompts` are the prompts of
its members, `routing` selects a member, `scoring` selects an answer, and `recovery` handles a member that failed.
"""
