"""The activities of the project."""
