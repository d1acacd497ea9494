"""Web addresses: reading a URL strictly, and which network addresses a request may go to.

The permission rules, the resolver and the request itself read a URL through `urls`, so they never disagree about its
host. `addresses` decides which resolved addresses are public.
"""
