"""Web addresses: strict parsing of URLs, and which network addresses a request may go to.

The permission rules, the resolver and the request itself parse a URL with `urls`, so they never disagree about its
host. `addresses` decides which resolved addresses are public.
"""
