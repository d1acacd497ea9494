"""From settings to what a worker serves beyond the built-in tools: the user's app and the packages that are enabled.

Reading order
    loading       `package.module:app` or a file → LoomApp
    packages      what is installed and brings tools or skills, known without running it
    documents     files that people write, read
    agent_files   agents in YAML and TOML files
    crew_files    crews in YAML, TOML and JSON files
    kinds         the kinds of files that `loom validate` knows
    registry      app, packages and built-in tools together; clashes are refused
    describe      what a package that is not enabled would bring, read in a process of its own
"""
