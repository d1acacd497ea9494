"""Compare Loom with other agent loops on Temporal, with `make bench-peers`."""
