"""Agent Skills: folders of instructions that a model loads when it needs them.

`catalog` holds the skills of a run, `documents` reads SKILL.md, `scripts` finds scripts that declare themselves as
tools, and `active` tells which skills a conversation has loaded.
"""
