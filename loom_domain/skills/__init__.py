"""Agent Skills: folders of instructions that a model loads when it needs them.

`catalog` contains the skills of a run, `documents` parses SKILL.md, `scripts` finds scripts that declare themselves as
tools, and `active` determines which skills a conversation has loaded.
"""
