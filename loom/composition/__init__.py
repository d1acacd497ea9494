"""From settings to the parts of a worker: the one place that chooses an implementation for each port.

Reading order
    parts         what there is of each, and the activities made of them
    assembly      making them, for the time that a worker lives
    tools         every tool, agent and crew that a worker serves
    memory        what remembers, and what keeps it beside a worker
"""
