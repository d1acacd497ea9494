"""The embedded stack: Temporal, Postgres and Redis as child processes, with the worker, in one directory.

Reading order
    errors      what the stack says when it cannot do what it was asked
    state       `stack.json`: which processes are ours, where they listen
    home        the directory: made, checked, locked
    ports       the usual port if it is free, else another that is remembered
    processes   start a child, see whether it lives, end it
    parts       Temporal and Redis: command line, address, readiness
    postgres    the same for Postgres, which wants more care
    plan        what a supervisor is asked to run
    supervisor  the long-lived process: starts the parts, starts them again when they die, ends them
    stack       up and down, as the terminal commands call them
"""
