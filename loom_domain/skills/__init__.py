"""Agent Skills: folders with instructions that a model loads on demand.

`catalog` defines a run's skills, `documents` parses SKILL.md, `scripts` finds scripts that declare themselves as tools,
and `active` finds the skills that a conversation has loaded.
"""
