"""The rule for delegation: delegate each folder to a sub-agent and combine the answers."""

import json

from loom.activities.adapters.models.demo.scene import MOST_FILES, Decision, PastCall, Scene, answering, asking
from loom.domain.core.tool_names import DELEGATE


def delegate(scene: Scene) -> Decision:
    """Delegate a review of each folder to a sub-agent, and combine the answers."""
    if not scene.of("list_dir"):
        return asking(scene, "I'll look at the files.", ("list_dir", {"path": "."}))
    folders = [entry.rstrip("/") for entry in scene.entries if entry.endswith("/") and not entry.startswith((".", "_"))]
    if not folders:
        return answering(scene, f"there is no folder to delegate. {scene.failures}")
    if not scene.of(DELEGATE):
        tools = ["list_dir", "glob", "read_file", "grep"]
        wishes = tuple(
            (
                DELEGATE,
                {"description": f"review {name}", "prompt": f"Review the code in the folder {name}.", "tools": tools},
            )
            for name in folders[:MOST_FILES]
        )
        return asking(scene, f"I'll delegate {len(wishes)} reviews: {', '.join(folders[:MOST_FILES])}.", *wishes)
    return answering(scene, "\n\n".join(_brought(tried) for tried in scene.of(DELEGATE)))


def _brought(tried: PastCall) -> str:
    try:
        told = json.loads(tried.output)
        return f"## {told['task']}: {told['status']}\n\n{told['result']}"
    except (ValueError, KeyError, TypeError):
        return f"## {tried.arguments.get('description')}: failed\n\n{tried.output}"
