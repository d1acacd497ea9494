"""The state machine of a run: `next_action(state)`, `evolve(state, event)` and their table in `transitions`.

Every run passes through `turn_start`, `model_replies`, `tool_results` and `limits`. Each other module is about one
subject, and a run without it never calls it: `model_retry`, `steering`, `run_hooks`, `compression_step`,
`reflection_step`, `evaluation_step`, `wrap_up`, `delegation`, `tree_sync`. `activity_requests` derives the request of
each activity from the state.
"""
