"""The rules for small tasks on text files: list, count, show, find, replace and create."""

import re
from typing import Final

from loom.activities.adapters.models.demo.scene import (
    HOW_TO_GO_ON,
    MOST_FILES,
    Decision,
    Page,
    Scene,
    answering,
    asking,
    short,
)

MOST_LINES: Final = 5
"""Maximum number of lines that are shown of a file, or found."""

PATH: Final = r"(?<![\w./-])((?:[\w-]+/)*[\w-]+(?:\.[A-Za-z]\w{0,9})+)(?![\w/])"
_FILE = re.compile(PATH, re.ASCII)
_CREATE = re.compile(
    rf"\b(?:create|write|make)\b[^.\n]*?{PATH}[`'\"]? (?:with|containing) (?:the )?"
    r"(?:text |content |words? |lines? )?(.+)",
    re.IGNORECASE | re.DOTALL | re.ASCII,
)
_REPLACE = re.compile(
    rf"\breplace (.+?) (?:with|by) (.+?) in (?:the )?(?:file )?[`'\"]?{PATH}", re.IGNORECASE | re.ASCII
)
_TODO = re.compile(r"\bTODOs?\b", re.IGNORECASE)
_LIST = re.compile(r"\b(?:list|show)\b.*\bfiles\b", re.IGNORECASE)
_FIND = re.compile(r"\b(?:mentions?|contains?|search for|grep for|occurrences of)\s+(.+?)\s*[?.]*$", re.IGNORECASE)
_COUNT = re.compile(r"\bcount\b|\bhow (?:many|long)\b|多少|几[行个]", re.IGNORECASE)
_SHOW = re.compile(r"\b(?:show|read|print|open|say|says)\b", re.IGNORECASE)


def text_task(scene: Scene) -> Decision | None:
    """Do a small task on the text files that the request names. Return None if the request isn't one."""
    request = scene.request
    if made := _CREATE.search(request):
        return _create(scene, path=made[1], content=bare(made[2]) + "\n")
    if wanted := _REPLACE.search(request):
        return _replace(scene, old=bare(wanted[1]), new=bare(wanted[2]), path=wanted[3])
    if _LIST.search(request):
        return _list(scene)
    if _TODO.search(request):
        return _find(scene, "TODO")
    if wanted := _FIND.search(request):
        return _find(scene, bare(wanted[1]))
    paths = list(dict.fromkeys(_FILE.findall(request)))[:MOST_FILES]
    return _read(scene, paths) if paths and "read_file" in scene.offered else None


def _create(scene: Scene, *, path: str, content: str) -> Decision:
    if not (writes := scene.of("write_file")):
        return asking(scene, f"I'll write {path}.", ("write_file", {"path": path, "content": content}))
    return answering(scene, f"{path} was not written. {scene.failures}" if writes[-1].failed else f"I wrote {path}.")


def _replace(scene: Scene, *, old: str, new: str, path: str) -> Decision:
    if not scene.of("read_file"):
        return asking(scene, f"I'll read {path}.", ("read_file", {"path": path}))
    if not (page := next(scene.pages, None)):
        return answering(scene, f"Nothing was changed. {scene.failures}")
    if old not in page.text:
        return answering(scene, f"Nothing was changed: I found no {old!r} in what I read of {path}.")
    if not (edits := scene.of("edit_file")):
        edit = {"path": path, "old_string": old, "new_string": new, "replace_all": True}
        return asking(scene, f"I'll change {path}.", ("edit_file", edit))
    done = f"I replaced {old!r} with {new!r} in {path}."
    return answering(scene, f"Nothing was changed. {scene.failures}" if edits[-1].failed else done)


def _list(scene: Scene) -> Decision:
    if not scene.of("list_dir"):
        return asking(scene, "I look at what is there.", ("list_dir", {"path": "."}))
    return answering(scene, "\n".join(["These files and folders are here:", *(f"- {name}" for name in scene.entries)]))


def _find(scene: Scene, words: str) -> Decision:
    if not scene.of("grep"):
        wish = {"pattern": re.escape(words), "path": ".", "ignore_case": True}
        return asking(scene, f"I'll look for {words}.", ("grep", wish))
    found = [line for line in scene.lines("grep") if re.match(r"[^:]+:\d+:", line)]
    if not found:
        return answering(scene, f"I found no {words!r} in the files here. {scene.failures}".strip())
    more = [f"… and {len(found) - MOST_LINES} more"] if len(found) > MOST_LINES else []
    lines = [f"- {line}" for line in found[:MOST_LINES]]
    return answering(scene, "\n".join([f"I found {words!r} here:", *lines, *more]))


def _read(scene: Scene, paths: list[str]) -> Decision:
    if not scene.of("read_file"):
        return asking(scene, f"I'll read {', '.join(paths)}.", *(("read_file", {"path": path}) for path in paths))
    pages = list(scene.pages)
    if not pages:
        return answering(scene, f"I could read nothing. {scene.failures}")
    told = [_counts(page) for page in pages]
    if not _COUNT.search(scene.request):
        told = ["\n".join([counts, *_beginning(page)]) for counts, page in zip(told, pages, strict=True)]
    if not _COUNT.search(scene.request) and not _SHOW.search(scene.request):
        told.insert(0, f"I follow rules, so I can't do more for {short(scene.request)!r} than describe the text:")
        told.append(HOW_TO_GO_ON)
    return answering(scene, "\n\n".join([*told, scene.failures]).strip())


def _counts(page: Page) -> str:
    if page.note:
        return f"{page.path} has no text that I can show: {page.note}"
    lines, words = len(page.text.splitlines()), len(page.text.split())
    part = "" if page.is_whole else " in the part that I read"
    return f"{page.path} has {_counted(lines, 'line')} and {_counted(words, 'word')}{part}."


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _beginning(page: Page) -> list[str]:
    lines = page.text.splitlines()
    return [f"    {line}" for line in lines[:MOST_LINES]] + (["    …"] if len(lines) > MOST_LINES else [])


def bare(words: str) -> str:
    """Return the words without the quotes around them."""
    return words.strip().strip("`'\"")
