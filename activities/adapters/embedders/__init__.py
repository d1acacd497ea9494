"""Embedders: they turn texts into vectors, on this machine or through a server."""
