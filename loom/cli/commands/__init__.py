"""The commands, one module per subject. `loom.cli.main` lists the modules and imports each one on first use.

A module exposes `app`, a Typer application that contains either one group (`loom memory …`) or a few top-level commands
(`loom up`, `loom down`). A command parses its options, calls the client or the composition, and prints the result: text
for people or, with `--json`, JSON for programs.
"""
