"""The HTTP service, `loom serve`. To read the code, start with these files:

1. `app.py` assembles the service: routes, middleware, the page.
2. `caller_runs.py` is everything that a caller may do, with the checks of role, tenant and approval policy.
3. `access/` says who the caller is: tokens, JWTs, roles, approval policies.
4. `routes/` translates HTTP to `CallerRuns`, one file for each subject.
5. `run_streams.py` reads each watched run once and passes its events to all watchers.
"""
