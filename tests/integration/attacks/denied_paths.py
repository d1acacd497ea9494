"""Lines that read or write a denied file, by a program, a spelling of the path, and a way to run the program.

`denied_paths.jsonl` has lines for some 1,400 uses of programs, most of which this machine doesn't have. `Lines` writes
others, from the programs that it has.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

READ: Final = ".env"
WRITTEN: Final = "locked.txt"
RULES: Final[Mapping[str, Mapping[str, str]]] = {
    "reads": {"bash": "allow", f"read_file({READ})": "deny"},
    "writes": {"bash": "allow", f"write_file({WRITTEN})": "deny"},
}
FILES: Final = {"reads": READ, "writes": WRITTEN}
CANARY: Final = "CANARY=5ec2e7"

_FORMS: Final = (
    "‹program› ‹path›",
    "‹program› x ‹path›",
    "‹program› ‹path› x",
    "‹program› -f ‹path›",
    "‹program› -f‹path› x",
    "‹program› -o ‹path› x",
    "‹program› -i ‹path›",
    "‹program› -a ‹path› x",
    "‹program› --file=‹path›",
    "‹program› --output ‹path› x",
    "‹program› --reference=‹path› x",
    "‹program› x=‹path›",
    "‹program› @‹path›",
    "‹program› file:‹path›",
    "‹program› -l 1 ‹path›",
    "‹program› -- ‹path›",
    "‹program› 'r ‹name›' x",
    "‹program› 'w ‹name›' x",
    "‹program› <<< ‹path›",
    "‹program› < ‹path›",
)
_PATHS: Final = (
    *("‹name›", "./‹name›", "sub/../‹name›", "'‹name›'", '"‹name›"', '"$PWD/‹name›"', "$PWD/‹name›", ".//‹name›"),
    *("{‹name›,x}", "‹head›*", "‹head›?‹tail›", "‹head›[!z]‹tail›", "$'‹name›'", '‹head›""*'),
    *("../work/‹name›", "{x,./‹name›}"),
)
_AROUND: Final = (
    *("‹line›", "‹line›", "‹line›", "sudo ‹line›", "env ‹line›", "env -i ‹line›", "timeout 2 ‹line›", "nice ‹line›"),
    *(
        "choom -n 0 -- ‹line›",
        "setsid ‹line›",
        "stdbuf -oL ‹line›",
        "time ‹line›",
        "! ‹line›",
        "(‹line›)",
        "‹line› | cat",
    ),
    *("cat x | ‹line›", "for i in 1; do ‹line›; done", 'echo "$(‹line›)"', "cd sub/..; ‹line›", "command ‹line›"),
)
_COMMON: Final = tuple(
    """
    cat fmt look ptx sed awk grep head tail sort uniq cut tr tee cp mv ln install touch truncate fallocate dd shuf
    split csplit comm join paste nl od xxd base64 base32 basenc cksum sum b2sum md5sum sha1sum wc fold expand
    unexpand pr tsort numfmt factor date ls stat du df echo printf test expr seq find xargs git diff diff3 sdiff cmp
    patch tar gzip bzip2 xz zip curl wget perl python3 make gcc objcopy objdump strings nm readelf ar strip size
    column rev hexdump less more script logger chmod chown mkdir rmdir rm unlink shred mktemp readlink realpath
    basename dirname file tac
    """.split()  # noqa: SIM905 - as a list it would take a screen
)


def given_lines() -> Sequence[tuple[str, str]]:
    """Return the lines of the file, each with what it does to the denied file: `reads` or `writes`."""
    path = Path(__file__).with_name("denied_paths.jsonl")
    return [pair for line in path.read_text(encoding="utf-8").splitlines() for pair in json.loads(line).items()]


@dataclass(frozen=True)
class Lines:
    """Writes lines that would read or write a denied file, or that name it."""

    random: Random

    def some(self, count: int) -> Iterator[tuple[str, str]]:
        """Yield lines, each with what it would do to the denied file."""
        programs = sorted(_installed())
        for _ in range(count):
            use = self.random.choice(tuple(FILES))
            program = self.random.choice(_COMMON if self.random.random() < 0.7 else programs)
            yield use, self._line(program, FILES[use])

    def _line(self, program: str, name: str) -> str:
        path = self.random.choice(_PATHS)
        line = self.random.choice(_AROUND).replace("‹line›", self.random.choice(_FORMS))
        line = line.replace("‹program›", program).replace("‹path›", path)
        return line.replace("‹name›", name).replace("‹head›", name[:3]).replace("‹tail›", name[4:])


def _installed() -> set[str]:
    """Return the programs of this machine."""
    return {each.name for each in Path("/usr/bin").iterdir() if os.access(each, os.X_OK) and each.name.isascii()}
