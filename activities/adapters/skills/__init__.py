"""Skills on a worker's disk: `folders` finds them, and `front_matter` reads their SKILL.md."""
