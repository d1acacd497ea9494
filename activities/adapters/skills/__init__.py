"""Skills on a worker's disk: `folders` finds skills, `front_matter` reads their SKILL.md files, and `requirements`
checks what they need.
"""
