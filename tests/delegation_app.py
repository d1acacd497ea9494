"""An app with an agent that others can give work to."""

from loom import LoomApp

app = LoomApp()
app.create_agent(
    "forecaster", system_prompt="You forecast.", tools=["glob"], permissions={"glob": "allow"}, max_turns=3
)
app.create_agent("writer", tools=["write_file"], permissions={"write_file": "allow"})
