"""What releases store in Loom's Postgres, as the statements that they send.

`stories` stores something in each table through today's stores, and reads it again. `recording` keeps the statements
that the stores send in a file, and sends them again. Each release has a recording:

    python -m tests.stored.recording 0.5.0

`tests/integration/activities/test_stored_data.py` sends these statements to the release's own schema, which it then
migrates, and to today's schema, as a worker of the release does while a newer one replaces it. It also sends those with
which the last release reads to what today's stores have stored.

`0.2.0.sql` and `0.3.0.sql` were recorded with the code of these releases. `unreleased.sql` was recorded shortly before
0.4.0. Delete it when 0.4.0 has a recording.
"""
