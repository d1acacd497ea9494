"""The agents of the example crews. To serve them, run `loom worker --app examples.crews.staff:app`."""

from loom import LoomApp

app = LoomApp()

app.create_agent(
    "scout",
    description="Finds out what is there. Changes nothing.",
    system_prompt="You look into files and say what you found, with file and line. You never guess.",
    tools=["read_file", "glob", "grep", "list_dir"],
    permissions={"read_file": "allow", "glob": "allow", "grep": "allow", "list_dir": "allow", "default": "deny"},
)
app.create_agent(
    "writer",
    description="Writes up what others have found.",
    system_prompt="You write short reports for people in a hurry: first what matters, then what to do about it.",
    tools=["read_file", "glob", "grep", "list_dir", "write_file"],
    permissions={
        "read_file": "allow",
        "glob": "allow",
        "grep": "allow",
        "list_dir": "allow",
        "write_file": "ask",
        "default": "deny",
    },
)
