"""Follow a run at the terminal: its events, its pending approvals and questions, and its result.

`follower` reads the run and drives a `Display`, which controls the appearance. The display is the `screen` for people,
or one from `json_display` for programs. `transcript` turns events into lines, `panels` draws boxes, and `spending`
counts tokens and cost. `pending_approvals` tracks the approvals and questions that are waiting for a person, and
`approval_prompt` reads the answers from the `keyboard`. `file_changes` renders diffs, and `markdown` renders answers.
`watch_all` shows all runs at once.
"""
