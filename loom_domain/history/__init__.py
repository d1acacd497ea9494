"""What Temporal's history tells about a run: its turns, its events, and where a fork begins.

`facts` is the decoded history, `past_turns` the run turn by turn, `task_rebuilding` the events of its stream made
again, `forks` a new run from one of its turns, `diffs` two runs side by side.
"""
