"""Adapters: the implementations of the ports, grouped by the system that they talk to.

Each sub-package has one subject, such as `postgres` or `models`. Adapters may import SDKs and drivers, which nothing
else in the activities does. `loom.composition` chooses one implementation for each port from the settings.
"""
