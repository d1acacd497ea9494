"""The sandbox in which tools run programs.

`namespaces` runs a command in Linux namespaces with bubblewrap, which `bubblewrap` finds and tests. `hidden_paths` and
`protected_paths` restrict its files, `system_calls` and `resource_limits` its kernel, and `watchdog` ends a command
that uses too much. `unsandboxed` runs commands without protection.
"""
