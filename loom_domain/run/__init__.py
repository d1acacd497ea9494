"""A run as values: its state, the events that change it, the actions it needs, and the payloads of its activities.

`state` is the whole of a run, and `conversation` its largest part; `carried_state` reads the state of earlier releases.
`events` have names in the past tense, `actions` are imperatives, and `activity_payloads` go to and from activities.
`retry_policy` decides on retries; `status`, `pending_approvals` and `stream_events` are views. How events change the
state is in `loom.domain.machine`.
"""
