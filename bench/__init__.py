"""Measure what a run costs, with `make bench`. Runs are measured on the servers that `loom up` starts."""
