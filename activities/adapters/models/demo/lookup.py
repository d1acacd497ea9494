"""The rule for lookups: search the available files for the words in a request."""

import re
from typing import Final

from loom.activities.adapters.models.demo.scene import Decision, Scene, answering, asking

MOST_PLACES: Final = 3

_WORD = re.compile(r"[^\W\d_]{4,}|\w*\d\w*")
_ENDING = re.compile(r"(?<=\w{4})(?:ed|ing|es|s|e)$")
_COMMON = re.compile(
    r"about|also|been|cannot|could|does|from|have|here|into|just|know|like|look|more|need|only|please|should|some|such"
    r"|tell|than|that|their|them|then|there|they|this|very|want|were|what|when|where|which|will|with|would|your"
)
"""Words that are too common to search for."""


def look_up(scene: Scene) -> Decision:
    """Return the lines that contain the most words from the request, with their locations."""
    words = _words(scene.request)
    if not words:
        return answering(scene, "the request contains no words that I can look for.")
    stems, told = [_ENDING.sub("", word) for word in words], ", ".join(words)
    if not scene.of("grep"):
        wish = {"pattern": rf"\b(?:{'|'.join(stems)})", "path": ".", "ignore_case": True}
        return asking(scene, f"I'll look for {told}.", ("grep", wish))
    places = _best(scene, stems)
    if not places:
        return answering(scene, f"no file here says anything about {told}. {scene.failures}".strip())
    return answering(scene, "\n".join(["this is what the files say:", *(f"- {place}" for place in places)]))


def _words(request: str) -> list[str]:
    """Return the words to search for."""
    said = (word.lower() for word in _WORD.findall(request))
    return list(dict.fromkeys(word for word in said if not _COMMON.fullmatch(word)))


def _best(scene: Scene, stems: list[str]) -> list[str]:
    found = [(_hits(line, stems), line) for line in scene.lines("grep") if re.match(r"[^:]+:\d+:", line)]
    most = max((hits for hits, _ in found), default=0)
    return [line for hits, line in found if hits == most][:MOST_PLACES]


def _hits(line: str, stems: list[str]) -> int:
    text = line.split(":", 2)[2]
    return sum(re.search(rf"\b{stem}", text, re.IGNORECASE) is not None for stem in stems)
