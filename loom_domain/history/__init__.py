"""What Temporal's history says about a run: its turns, its tasks, and where a fork starts.

`facts` is the decoded history, `past_turns` the run turn by turn, `task_rebuilding` recreates the tasks of its stream,
`forks` starts a new run from one of its turns, and `diffs` compares two runs.
"""
