"""What keeps workflow and domain code deterministic: two checks that `make check` runs, and the proof that they catch.

`lines.py` reads the source: imports, clocks, randomness, the environment, globals that change. `set_order.py` is a
plugin of mypy, which knows the types: nothing may depend on the order of a set. docs/decisions/0001-determinism.md says
why this takes the place of Temporal's sandbox.
"""
