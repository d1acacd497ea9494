"""Evals: data sets of tasks with checks, the results of their runs, and how certain these results are.

`intervals` contains the statistics. `report` adds up the runs of an eval and compares two evals. `what_if` compares
recorded runs with the same runs under another model, another prompt, or other rules.
"""
