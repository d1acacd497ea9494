"""Tools, agents, crews and hooks that users define in Python, in files or in packages.

`loading` imports `package.module:app` or a file, `packages` finds installed packages, and `registry` combines both with
the built-in tools. `agent_files`, `crew_files` and `document_files` read files, and `forms` validates their fields.
"""
