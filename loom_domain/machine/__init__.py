"""The state machine of a run: `next_action(state)` and `evolve(state, event)` in `transitions`.

Every other module holds the transitions of one subject: `turn_start`, `model_retry`, `tool_results`, `answers`,
`steering`, `limits`, and those that only some runs need: `run_hooks`, `compression_step`, `evaluation_step`, `wrap_up`,
`delegation`, `tree_sync`. `activity_requests` derives the input of each activity from the state.
"""
