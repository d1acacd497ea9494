"""The `loom` command, a thin layer over `loom.client` and `loom.composition`.

`main` contains the table of commands. Each command module in `commands` is imported only when its command is used.
`watch` follows a run at the terminal and answers its approval requests. `output` formats and prints text, `arguments`
reads option values, `connection` connects to the server, and `run_names` finds the run that a person names. No other
package in Loom imports this one.
"""
