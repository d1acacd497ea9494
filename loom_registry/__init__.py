"""From settings to what a worker serves beyond the built-in tools: the user's app and the packages that are enabled.

Reading order
    loading       `package.module:app` or a file → LoomApp
    packages      what is installed and brings tools or skills, known without running it
    registry      app, packages and built-in tools together; clashes are refused
    describe      what a package that is not enabled would bring, read in a process of its own
"""
