"""A run as values: its state, the events that change it, the actions it asks for, and the payloads of its activities.

`state` is the one value that is a run. `events` are past tense, `actions` imperative; `activity_payloads` is what the
workflow exchanges with its activities. `retry_policy` decides on retries, `status` and `pending_approvals` are views.
How events change the state is in `loom.domain.machine`.
"""
