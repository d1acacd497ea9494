"""What a run costs, measured: `make bench`. Ratios and medians, side by side, on the server that `loom up` starts."""
