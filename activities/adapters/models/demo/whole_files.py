"""The rules for tasks on whole files: rename, sort, append to, delete, and find the largest one."""

import re
from shlex import quote
from typing import Final

from loom.activities.adapters.models.demo.scene import Decision, Scene, answering, asking
from loom.activities.adapters.models.demo.text_files import PATH, bare

_NAMED = rf"(?:the )?(?:file )?[`'\"]?{PATH}[`'\"]?"
_RENAME = rf"(?:rename|move) {_NAMED} (?:to|into|as) {_NAMED}"
_SORT = rf"sort (?:the lines (?:of|in) )?{_NAMED}(?: alphabetically)?"
_APPEND = rf"(?:append|add the (?:line|text|word)) (?:the )?(?:line |text |word )?(.+?) to (?:the end of )?{_NAMED}"
_DELETE = rf"(?:delete|remove) {_NAMED}"
_EXTREME = re.compile(r"\b(largest|biggest|smallest) file\b", re.IGNORECASE)
_SIZED: Final = re.compile(r"(.+) \((\d+) bytes\)")


def whole_file_task(scene: Scene) -> Decision | None:
    """Do a task on whole files. Return None if the request isn't one, or if it says more than these rules know."""
    if wanted := _whole(_RENAME, scene.request):
        old, new = wanted.groups()
        command = f"mv -n -- {quote(old)} {quote(new)} && test ! -e {quote(old)}"
        return _run(scene, command, f"I renamed {old} to {new}.")
    if wanted := _whole(_SORT, scene.request):
        path = wanted[1]
        return _run(scene, f"sort -o {quote(path)} -- {quote(path)}", f"I sorted the lines of {path}.")
    if wanted := _whole(_APPEND, scene.request):
        line, path = bare(wanted[1]), wanted[2]
        # The first command ends the last line if it has no end.
        command = f"sed -i -e '$a\\' -- {quote(path)} && printf '%s\\n' {quote(line)} >>{quote(path)}"
        return _run(scene, command, f"I appended {line!r} to {path}.")
    if wanted := _whole(_DELETE, scene.request):
        return _delete(scene, wanted[1])
    return _extreme(scene, wanted[1].lower()) if (wanted := _EXTREME.search(scene.request)) else None


def _whole(pattern: str, request: str) -> re.Match[str] | None:
    return re.fullmatch(rf"(?:please )?{pattern}[.!]?", request, re.IGNORECASE | re.ASCII)


def _run(scene: Scene, command: str, done: str) -> Decision:
    if not (runs := scene.of("bash")):
        return asking(scene, f"I'll run `{command}`.", ("bash", {"command": command}))
    return answering(scene, f"It isn't done. {scene.failures}" if runs[-1].failed else done)


def _delete(scene: Scene, path: str) -> Decision:
    if not (deleted := scene.of("delete_file")):
        return asking(scene, f"I'll delete {path}.", ("delete_file", {"path": path}))
    return answering(scene, f"{path} was not deleted. {scene.failures}" if deleted[-1].failed else f"I deleted {path}.")


def _extreme(scene: Scene, which: str) -> Decision:
    if not scene.of("list_dir"):
        return asking(scene, "I look at what is there.", ("list_dir", {"path": "."}))
    matches = [_SIZED.fullmatch(line.strip()) for line in scene.lines("list_dir")]
    sizes = {match[1]: int(match[2]) for match in matches if match}
    if not sizes:
        return answering(scene, f"I found no files here. {scene.failures}".strip())
    name = (min if which == "smallest" else max)(sizes, key=lambda each: sizes[each])
    return answering(scene, f"The {which} file here is {name} with {sizes[name]} bytes. I didn't look into folders.")
