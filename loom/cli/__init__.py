"""The `loom` command: a thin layer over `loom.client` and `loom.composition` for people and scripts.

`main` holds the table of commands; each command module in `commands` is imported only when its command is used.
`watch` follows a run at the terminal and answers its approvals. `output` prints, `arguments` reads option values,
`connection` talks to the server. Nothing else in Loom imports this package.
"""
