"""A run's state machine: `next_action(state)`, `evolve(state, event)`, and the transition table in `transitions`.

Every run uses `turn_start`, `model_replies`, `tool_results`, and `limits`. Each of the other modules implements one
optional feature: `model_retry`, `steering`, `run_hooks`, `compression_step`, `reflection_step`, `evaluation_step`,
`wrap_up`, `delegation`, and `tree_sync`. `activity_requests` derives each activity's request from the state.
"""
