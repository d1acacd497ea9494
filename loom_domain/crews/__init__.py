"""Crews: several agents that work on one task, in sequence, in parallel, coordinated, routed, planned, or as branches.

`crew` defines a crew. `next_crew_action` decides the crew's next action from its `log` alone. `prompts` builds the
members' prompts, `routing` selects a member, `scoring` selects an answer, and `recovery` handles failed members.
"""
