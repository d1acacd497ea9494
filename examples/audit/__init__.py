"""An audit of source code by a run whose worker is killed while the run is waiting (`make demo`).

Read the modules in this order:
    demo      the steps of the demo: start the stack, run, kill the worker, approve, check, and stop everything
    telling   shows the run as text while it is in progress
    proof     checks the history and the live stream afterwards
    sources   the audited code, which contains deliberate flaws
"""
