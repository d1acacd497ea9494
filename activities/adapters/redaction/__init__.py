"""Redaction of secrets in text.

`mask` combines the ways to find a secret: `known_secrets`, `patterns`, `locations` and `private_keys`.
`stream` redacts text that arrives in chunks.
"""
