"""Made-up secrets in real formats, and texts that only look like secrets.

Everything is made from a seed when it is asked for, and prefixes are put together from parts: nothing in these files
looks like a secret to a scanner, and no one's key can have got in.
"""
