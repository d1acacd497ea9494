"""Following a run at the terminal: its events, its pending approvals and questions, and its result.

`follower` reads the run and decides nothing about looks: it drives a `Display`, either the `screen` for people or one
of `json_display` for programs. `transcript` turns events into lines, `panels` draws boxes, `spending` counts tokens
and cost. `pending_approvals` tracks what waits for a person; `approval_prompt` reads the answer from the `keyboard`.
"""
