"""Read a run from Temporal's history: its turns, its tasks, and the starting point of a fork.

`facts` contains the decoded history, `past_turns` reconstructs the run turn by turn, `task_rebuilding` rebuilds the
tasks in the run's stream, `forks` starts a new run from one of the turns, and `diffs` compares two runs.
"""
