"""The sandbox in which tools run programs.

`namespaces` runs a command in Linux namespaces with the bubblewrap program, which `bubblewrap` finds and tests.
`hidden_paths` and `protected_paths` restrict the command's access to files. `system_calls` and `resource_limits`
restrict its access to the kernel. `watchdog` stops a command that exceeds a resource limit. `unsandboxed` runs commands
without protection.
"""
