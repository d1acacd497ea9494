"""The limits of an agent's options."""

from typing import Final

MOST_LOOPED_TURNS: Final = 100
"""The largest window for loop detection. A run carries the digests of that many turns."""
MOST_KEPT_TURNS: Final = 50
"""The maximum number of turns that a compression keeps word for word."""
MOST_PARALLEL_CALLS: Final = 500
"""The maximum number of tool calls that run at the same time. The server accepts 2,000 open activities for a run."""
MOST_TOOL_ATTEMPTS: Final = 20
LONGEST_TOOL_CALL: Final = 7 * 86_400.0
"""The longest timeout of a tool call, in seconds."""
LONGEST_MODEL_WAIT: Final = 3600.0
"""The longest time without data from a provider, in seconds. A model call as a whole takes at most that long."""
MOST_PASSAGES: Final = 50
"""The maximum number of passages per message from one knowledge base."""
