"""Clones of Git repositories that runs work in.

`clones` keeps a clone for each run, and `remotes` runs the Git commands that talk to the repositories' servers.
"""
