"""Signing keys in files, and a Temporal client that signs with them."""
