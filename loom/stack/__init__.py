"""The embedded stack: Temporal, Postgres and Redis as child processes, with the worker, in one directory.

Reading order
    up_down     `loom up` and `loom down`
    plan        what a supervisor is asked to run
    supervisor  the long-lived process that starts the services and the worker, restarts them and stops them
    services    Temporal, Redis and the worker: command line, address, readiness
    postgres    the same for Postgres, which must not run as root
    processes   start a child process, check on it, stop it
    ports       the usual port of a service if it is free, else another one
    home        the directory: create, check and lock it
    state       `stack.json`: which processes belong to the stack, and where they listen
    errors      the errors of the stack
"""
