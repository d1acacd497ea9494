"""The `loom` command, a thin layer over `loom.client` and `loom.composition`.

`main` contains the table of commands. Each command module in `commands` is imported only when its command is used.
`watch` follows a run at the terminal and answers its approval requests. `output` formats and prints text, `arguments`
reads option values, and `connection` connects to the server. No other package in Loom imports this one.
"""
