"""Example crews. `research.yaml` runs its members in sequence. `support.yaml` routes each task to one member."""
