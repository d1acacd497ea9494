"""The routes of the HTTP API, one file for each subject."""
