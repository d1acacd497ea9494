"""Evals on the command line: plan the runs of a data set, follow them, check them, and print the report."""
