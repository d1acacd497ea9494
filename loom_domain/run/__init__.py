"""The values that describe a run: its state, its events and actions, and the payloads of its activities.

`state` contains a run's entire state, and `conversation` is its largest part. `carried_state` reads the state that
earlier releases wrote. Event names are in the past tense, and action names are imperatives. `activity_payloads` defines
the inputs and results of activities. `retry_policy` decides on retries. `status`, `pending_approvals`, and
`stream_events` are views of the state. `loom.domain.machine` defines how events change the state.
"""
