"""What a user's module brings: tools, agents, crews and hooks, in Python, in files or in packages.

`loading` imports `package.module:app` or a file, `packages` finds installed packages, and `registry` combines them with
the built-in tools. `agent_files`, `crew_files` and `documents` read files, and `forms` validates their fields.
"""
