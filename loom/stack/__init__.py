"""The embedded stack: Temporal, Postgres and Redis as child processes, with the worker, in one directory.

`up_down` starts and stops it, as the commands do. `supervisor` is the long-lived process that restarts what dies.
`services` and `postgres` describe the processes, `state` records them in `stack.json`, and `home` prepares the
directory.
"""
