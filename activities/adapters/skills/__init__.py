"""Skills on a worker's disk: `folders` finds skills, and `front_matter` reads their SKILL.md files."""
