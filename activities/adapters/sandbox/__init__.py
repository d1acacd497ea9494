"""The sandbox for the programs that tools run.

`namespaces` uses the bubblewrap program to run a command in Linux namespaces. `bubblewrap` finds and tests that
program. `hidden_paths` and `protected_paths` restrict the command's access to files. `system_calls` and
`resource_limits` restrict its access to the kernel. `watchdog` stops a command that exceeds a resource limit.
`unsandboxed` runs commands without protection.
"""
