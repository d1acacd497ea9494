"""What people can say of agents, crews and hooks, in Python or in a file: fields, checked, and what comes of them.

Reading order
    form          what all of them share
    agent_form    an agent
    crew_form     a crew
    hook_form     hooks and interceptors at their registration
"""
