"""Snapshots of workspaces in shadow Git repositories.

`shadow_git` takes, compares and restores snapshots. `walk` scans a workspace, `record` stores a scan in a `store`,
`restore` applies a stored state, and `cleanup` deletes old snapshots.
"""
