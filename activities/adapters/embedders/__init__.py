"""Embedders convert text to vectors, either on this machine or through a server."""
