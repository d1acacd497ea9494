"""Conversations with a provider that refuses at random what real providers refuse.

    asked          what a request contains, read alike in both protocols
    media          whether a picture or a document is whole
    checks         what the rules look for
    words          what providers say
    rules          the table: what is refused, and in which words
    outside        the tools, whose results are odd
    conversations  what the model says in a conversation, and what its provider refuses, from a seed
    provider       the server
    runs           the conversations as runs of a worker, and what became of them

`python -m tests.refusing --runs 1000 --seed 1` tries many; tests/integration/workflows/test_refusing.py tries a few.
"""
