"""Access to the Temporal server: runs, their histories, and signals between them.

`runs` finds, queries and signals runs. `run_history` and `history_facts` read run histories. `errors` translates
Temporal errors into Loom errors.
"""
