"""Crews: `research.yaml`, one after the other; `support.yaml`, a desk that sends each task to who fits it."""
