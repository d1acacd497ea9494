"""Jobs that show what Loom is; each folder is one, and starts with everything it needs."""
