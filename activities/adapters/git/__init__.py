"""Clones of Git repositories that runs work in.

`clones` keeps a `clone` for each run. It is made from a `bare_repository`, and `changes` computes how its files differ.
`remotes` runs the Git commands that talk to the repositories' servers.
"""
