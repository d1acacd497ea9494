"""The corpus: every format several times and in several surroundings, each with the secret that must not be seen."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.corpora.secrets.formats import IN_TEXT, TOKENS
from tests.corpora.secrets.making import Maker

SURROUNDINGS: Final = (
    "{}",
    "export VALUE={}",
    "the server said: 401 for {}, try again",
    '{{"value": "{}"}}',
    '"first line\\n{}\\nlast line"',
    "    value: '{}'  # rotate me",
    "+value({})",
    "https://acme.test/callback?value={}&next=1",
    "\x1b[1;32m{}\x1b[0m",
)
"""Places in which a token may turn up without a name that gives it away."""

LEAK: Final = 8
"""So many characters of a secret in a row give it away."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A text and the secret in it."""

    kind: str
    text: str
    secret: str


def samples(seed: int = 1, repeats: int = 5) -> Iterator[Sample]:
    """The corpus; the same for the same seed."""
    maker = Maker(seed)
    for _ in range(repeats):
        for kind, make in TOKENS.items():
            for place in SURROUNDINGS:
                secret = make(maker)
                yield Sample(kind=kind, text=place.format(secret), secret=secret)
        for kind, make_text in IN_TEXT.items():
            text, secret = make_text(maker)
            yield Sample(kind=kind, text=text, secret=secret)
            yield Sample(kind=kind, text=f"$ cat it\n{text}\n$ echo done\ndone\n", secret=secret)


def leaks(sample: Sample, text: str, least: int = LEAK) -> bool:
    """So much of the secret is in the text that it is worth something: so many characters, or all of it."""
    secret = sample.secret
    pieces = {secret[at : at + least] for at in range(len(secret) - least + 1)} or {secret}
    around = sample.text.replace(secret, "")
    return any(piece in text and piece not in around for piece in pieces)
