"""The audit log: a chain of rows that say who did what, when, and to which run.

`entries` defines the content of a row, and `chain` defines how rows depend on each other. Rows contain digests instead
of messages, reasons and requests. `chain` also detects rows that somebody has changed, removed, added or moved.
"""
