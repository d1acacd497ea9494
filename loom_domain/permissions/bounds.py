"""A worker's bounds: the workspaces and the permission modes that it serves."""

from dataclasses import dataclass, replace
from typing import Final

from loom.domain.core.errors import BadRequest
from loom.domain.permissions.judge import Mode

_WIDTH: Final = {
    mode: width for width, mode in enumerate((Mode.READ_ONLY, Mode.DEFAULT, Mode.ACCEPT_EDITS, Mode.BYPASS))
}
"""How much each mode permits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """What a worker serves. The default values are the widest bounds."""

    roots: tuple[str, ...] | None = None
    """The real paths of the folders in which workspaces may be. None: any folder."""
    max_mode: Mode = Mode.BYPASS
    clone: str = ""
    """The folder that Loom itself has cloned for the run, wherever it is. Empty if there is none."""

    def with_clone(self, folder: str) -> "Bounds":
        """Return the bounds of a run that works in this clone. They are the same if `folder` is empty."""
        return replace(self, clone=folder) if folder else self

    def refuses(self, workspace: str, mode: Mode) -> bool:
        """Whether the workspace or the mode is outside the bounds. `workspace` must be a real path."""
        try:
            self.refuse_workspace(workspace)
            self.refuse_mode(mode)
        except BadRequest:
            return True
        return False

    def refuse_workspace(self, workspace: str) -> None:
        """Raise BadRequest if the workspace is neither a root nor inside one. `workspace` must be a real path."""
        if self.clone and workspace == self.clone:
            return
        if self.roots is None or any(f"{workspace}/".startswith(f"{root.rstrip('/')}/") for root in self.roots):
            return
        raise BadRequest(
            f"workspace {workspace!r} is outside the folders that this worker serves"
            f" ({', '.join(self.roots)}): choose a workspace in them, or restart the worker with yours in"
            " LOOM_WORKSPACES or --workspace-root",
            field="workspace",
        )

    def refuse_mode(self, mode: Mode) -> None:
        """Raise BadRequest if the mode permits more than `max_mode`."""
        if _WIDTH[mode] <= _WIDTH[self.max_mode]:
            return
        raise BadRequest(
            f"mode {mode.value!r} permits more than this worker does ({self.max_mode.value}): choose another mode, or"
            f" restart the worker with LOOM_MAX_MODE={mode.value}",
            field="mode",
        )

    def refuse_unrequested_mode(self, mode: Mode, *, of_parent: Mode = Mode.READ_ONLY) -> None:
        """Raise BadRequest if a mode that the request doesn't name permits more than `max_mode` and the parent's mode.

        Such a mode comes from an agent's definition, which an earlier run may have written, or from the forked run.
        """
        if _WIDTH[mode] <= max(_WIDTH[self.max_mode], _WIDTH[of_parent]):
            return
        raise BadRequest(
            f"mode {mode.value!r} comes from the agent's definition or from the forked run, and permits more than this"
            f" worker does ({self.max_mode.value}): name the mode in the request, or restart the worker with"
            f" LOOM_MAX_MODE={mode.value}",
            field="mode",
        )
