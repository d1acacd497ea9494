"""Decide whether a value is a secret. Placeholders, references, code and ordinary words aren't secrets."""

import math
import re
from collections import Counter
from typing import Final

from loom.activities.adapters.redaction.patterns import MASK

_STANDS_FOR_ONE: Final = tuple(
    r"""
    ${ $( {{ }} %( < > ... \x \u \0 xxxx **** #### ____ ---- [password]
    your example changeme change_me change-me placeholder place_holder dummy redacted replace insert_ todo sample fake
    foobar foo_bar foo-bar mysecret my_secret my-secret mytoken my_token my-token mypass my_pass my-pass myapi my_api
    my-api supersecret super_secret super-secret verysecret very_secret topsecret top_secret top-secret notreal
    not_real not-real aws4_request
    """.split()  # noqa: SIM905 - as a list it would take half a screen
)
"""Matches placeholders that people write in place of a secret."""

_SEQUENCES: Final = ("00000000", "12345678", "abcdef", "deadbeef")
LONGEST_SEQUENCE: Final = 32
"""Maximum length of a value that counts as a placeholder because it contains one of these sequences. Longer values are
redacted, because they can contain such a sequence by chance.
"""

_FORMAT: Final = re.compile(r"%[sdr](?!\w)")
_REFERENCE: Final = re.compile(r"\$\w+|%\w+%|[@&*]\w+|\{.*\}|[A-Za-z]:\\.*|[A-Za-z][A-Za-z0-9+.-]*://.*", re.DOTALL)
"""Matches a reference to a variable, a file or a URL."""

_PATH: Final = re.compile(r"@?(?:~|\.{1,2})?/.*", re.DOTALL)

_RANDOM_SEGMENT: Final = re.compile(r"(?:^|/)(?=[^/]*[a-z])(?=[^/]*[A-Z])(?=[^/]*\d)[A-Za-z0-9+]{30,}")

_CODE: Final = re.compile(r"_*[A-Za-z]\w*(?:(?:\.|->|::)_*[A-Za-z]\w*)+")
_WORDS: Final = re.compile(r"[A-Za-z_. /:,-]*\d{0,3}[_. /:,-]*|[\d\W_]*")
_SHORT_TOKEN: Final = re.compile(r"(?=.*[a-z])(?=.*[A-Z])(?=.*\d.*\d.*\d)[A-Za-z0-9]{10,15}")
_HEX: Final = re.compile(r"[0-9a-f]+|[0-9A-F]+")
_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9_.-]+")
_PIECES: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_NO_PASSWORD: Final = re.compile(
    r"(?:pass|passw(?:or)?d|pwd?|secret|token|tiger|user(?:name)?|x+|key|none|null|test|hunter2)\d{0,3}|\d{1,5},.*",
    re.IGNORECASE,
)


def is_placeholder(value: str) -> bool:
    """Whether the value is a placeholder for a secret, or names the place that the secret comes from."""
    if len(value) <= LONGEST_SEQUENCE and any(sequence in value.lower() for sequence in _SEQUENCES):
        return True
    return _stands_for_a_value(value)


def _stands_for_a_value(value: str) -> bool:
    if MASK in value or any(word in value.lower() for word in _STANDS_FOR_ONE):
        return True
    if len(set(value)) < 4 or _FORMAT.search(value) or _REFERENCE.fullmatch(value):
        return True
    return is_path(value)


def is_path(value: str) -> bool:
    """Whether the value is a file path. Base64 can also start with a slash, but it contains no words."""
    return bool(_PATH.fullmatch(value)) and _mean_piece(value) > 2.4 and not _RANDOM_SEGMENT.search(value)


def is_url_password(value: str) -> bool:
    """Whether a value before the @ in a URL is a password. The value is treated as a password unless it clearly isn't
    one. Weak passwords such as `12345678` are passwords, too.
    """
    return not (_stands_for_a_value(value) or _NO_PASSWORD.fullmatch(value))


def is_password(value: str) -> bool:
    """Whether the value is hard to guess. The value must contain both letters and digits, or at least three kinds of
    characters. It must not be just words and a number.
    """
    if len(value) < 6 or value.isalpha() or not any(map(str.isalpha, value)):
        return False
    is_mixed = any(map(str.isdigit, value)) or not (value.isalnum() or value.islower() or value.isupper())
    return is_mixed and not _is_about_one(value)


def is_token(value: str) -> bool:
    """Whether the value looks randomly generated: it is long, contains digits but no words, and its characters are
    evenly distributed.
    """
    if len(value) < 16 and _SHORT_TOKEN.fullmatch(value):
        return _mean_piece(value) < 2 and not is_placeholder(value)
    if len(value) < 16 or not any(map(str.isdigit, value)) or not any(map(str.isalpha, value)):
        return False
    enough = 2.7 if _HEX.fullmatch(value) else 3.0
    return not _is_about_one(value) and entropy(value) >= enough and not is_of_words(value)


def is_of_words(value: str) -> bool:
    """Whether the value is an identifier made of words. Capitals, digits or punctuation separate the words."""
    if not _IDENTIFIER.fullmatch(value) or (len(value) >= 32 and 2 * sum(map(str.isdigit, value)) > len(value)):
        return False
    return _mean_piece(value) >= 3.8


def entropy(value: str) -> float:
    """Return the Shannon entropy in bits per character."""
    return -sum(n / len(value) * math.log2(n / len(value)) for n in Counter(value).values())


def _is_about_one(value: str) -> bool:
    if is_placeholder(value):
        return True
    is_name = _WORDS.fullmatch(value) or _CODE.fullmatch(value)
    return bool(is_name) and (len(value) < 12 or _mean_piece(value) >= 3.3)


def _mean_piece(value: str) -> float:
    """Return the mean length of the sequences of letters. The mean is at least four in words, and about two in random
    text.
    """
    pieces = _PIECES.findall(value)
    return sum(map(len, pieces)) / max(1, len(pieces))
