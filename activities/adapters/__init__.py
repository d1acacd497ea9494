"""Adapters implement the ports. They are grouped by the system that they connect to.

Each sub-package has one subject, such as `postgres` or `models`. Only adapters may import SDKs and drivers.
`loom.composition` reads the settings and chooses one implementation for each port.
"""
