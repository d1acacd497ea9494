"""Embedders: texts to vectors, on this machine or by a server."""
