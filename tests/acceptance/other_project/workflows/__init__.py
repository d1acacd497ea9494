"""The workflows of a project that uses Loom and has folders of the same names."""
