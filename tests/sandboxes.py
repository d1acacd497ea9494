"""The sandbox of this machine. It is looked for once in each process, because that runs a program in it."""

from loom.activities.adapters.sandbox.bubblewrap import find_sandbox

SANDBOX, WHY_NOT = find_sandbox("on")
