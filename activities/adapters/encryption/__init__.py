"""Encryption with AES-GCM: the keys, what stores seal with them, and the codec of Temporal's payloads."""
