"""Access to the Temporal server: runs, their histories, and signals between them.

`runs` finds, queries and signals runs, `run_history` and `history_facts` read what they have done, and `errors`
translates Temporal's errors into Loom's.
"""
