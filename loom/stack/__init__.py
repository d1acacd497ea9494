"""The embedded stack: Temporal, Postgres, Redis and the worker as child processes, with their data in one directory.

Reading order
    up_down     `loom up` and `loom down`
    plan        the services and the worker that a supervisor has to run
    supervisor  the long-lived process that starts the services and the worker, restarts them and stops them
    services    Temporal, Redis and the worker: command line, address, readiness
    private_network  runs Temporal where only this user's processes reach it
    postgres    the same for Postgres
    users       the users as which services run when root starts the stack
    backup      copy a running stack to another directory
    processes   start, check and stop child processes
    ports       choose a service's usual port if it is free, or else another one
    home        the directory: create, check and lock it
    found_home  which directory it is
    state       `stack.json`: which processes belong to the stack, and where they listen
    errors      the errors of the stack
"""
