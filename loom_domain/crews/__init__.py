"""Crews: several agents that work on one task. They can work in sequence, in parallel, under a coordinator, through
routing, according to a plan, or as branches.

`crew` defines a crew. `next_crew_action` decides the crew's next action, based only on the crew's `log`. `prompts`
builds the members' prompts, `routing` selects a member, `scoring` selects an answer, and `recovery` handles failed
members.
"""
