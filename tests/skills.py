"""Skills for tests: whole ones, and every way in which one can be broken."""

from pathlib import Path

COUNT = """\
# /// loom-tool
# description = "Count the words of a text."
# [parameters.text]
# type = "string"
# ///
import json
import sys

print(len(json.load(sys.stdin)["text"].split()))
"""

SHOUT = """\
import sys
from pathlib import Path

here = Path(__file__).resolve().parent.parent
Path("shouted.txt").write_text(sys.argv[1].upper())
print((here / "references/style.md").read_text().strip(), sys.argv[1].upper(), sys.stdin.read().strip())
try:
    (here / "written").write_text("x")
except OSError as error:
    print("its folder:", error.strerror)
"""


def write_skill(
    place: Path, name: str, description: str = "", *, body: str = "Do it well.", more: str = "", **files: str
) -> Path:
    """A skill in a folder of `place`; `files` by their path with `/` written as `__`, and `.` as `_dot_`."""
    folder = place / name
    folder.mkdir(parents=True)
    about = description or f"Does what {name} does. Use it for {name}."
    folder.joinpath("SKILL.md").write_text(f"---\nname: {name}\ndescription: {about}\n{more}---\n\n{body}\n")
    for path, text in files.items():
        file = folder / path.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def write_release_notes(place: Path) -> Path:
    """A skill with everything: a resource, a script, and one that is a tool."""
    return write_skill(
        place,
        "release-notes",
        "Turns a list of changes into release notes. Use it when somebody asks for release notes or a changelog.",
        body="Read references/style.md first. Then run scripts/shout.py with the title.",
        references__style_dot_md="Be brief.\n",
        scripts__shout_dot_py=SHOUT,
        scripts__count_dot_py=COUNT,
    )


def write_broken_ones(place: Path) -> None:
    """Skills that nothing can be done with."""
    broken = {
        "no-front-matter": b"# Just a title\n",
        "no-end": b"---\nname: no-end\ndescription: x\n",
        "no-description": b"---\nname: no-description\n---\nbody\n",
        "not-yaml": b"---\nname: [a\ndescription: {\n---\nbody\n",
        "not-text": b"---\nname: not-text\ndescription: \xff\xfe\n---\nbody\n",
        "a-list": b"---\n- name\n- description\n---\nbody\n",
    }
    for name, content in broken.items():
        folder = place / name
        folder.mkdir(parents=True)
        folder.joinpath("SKILL.md").write_bytes(content)
