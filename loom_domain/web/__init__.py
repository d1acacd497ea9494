"""Web addresses: strict URL parsing, and the network addresses that a request may access.

The permission rules, the resolver and the request itself all parse URLs with `urls`, so they never disagree about a
URL's host. `addresses` decides which resolved addresses are public.
"""
