"""Characters drawn from a seed, in the alphabets of vendors."""

import string
from base64 import b64encode, urlsafe_b64encode
from random import Random
from typing import Final

ALNUM: Final = string.ascii_letters + string.digits
LOWER: Final = string.ascii_lowercase + string.digits
UPPER: Final = string.ascii_uppercase + string.digits
WORD: Final = ALNUM + "_-"
HEX: Final = "0123456789abcdef"
BASE32: Final = string.ascii_uppercase + "234567"
SIGNS: Final = "!#$%*+=?^~@&"


class Maker:
    """A source of random texts; the same seed, the same texts."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def of(self, alphabet: str, length: int) -> str:
        """So many characters of an alphabet, with a digit among them as all vendors' have."""
        drawn = self._random.choices(alphabet, k=length)
        if "7" in alphabet and length > 8:
            drawn[self._random.randrange(3, length - 1)] = "7"
        return "".join(drawn)

    def bytes(self, length: int) -> bytes:
        """So many bytes."""
        return self._random.randbytes(length)

    def base64(self, length: int) -> str:
        """The base64 of so many bytes."""
        return b64encode(self.bytes(length)).decode()

    def encoded(self, data: str) -> str:
        """The base64 of a text."""
        return b64encode(data.encode()).decode()

    def urlsafe(self, data: str) -> str:
        """Base64 as JWTs have it."""
        return urlsafe_b64encode(data.encode()).decode().rstrip("=")

    def uuid(self) -> str:
        """A random UUID."""
        h = self.of(HEX, 32)
        return f"{h[:8]}-{h[8:12]}-4{h[13:16]}-a{h[17:20]}-{h[20:]}"

    def password(self) -> str:
        """As a password manager makes them."""
        drawn = [*self.of(ALNUM, 14), *self._random.sample(SIGNS, 2)]
        self._random.shuffle(drawn)
        return self.pick("abcdefghkmnpqrstuvwxyzABCDEFGHKMNP") + "".join(drawn) + self.pick("234789")

    def safe_password(self) -> str:
        """One that may stand in an address as it is."""
        return self.of(ALNUM, 8) + self.pick("-_.~") + self.of(ALNUM, 8)

    def human_password(self) -> str:
        """As people make them."""
        word = self.pick(("Winter", "Berlin", "Dragon", "Monkey", "Sunshine", "Arsenal"))
        return f"{word}{self._random.randrange(1950, 2030)}{self.pick('!?#*')}"

    def pick(self, among: "str | tuple[str, ...]") -> str:
        """One of them."""
        return self._random.choice(among)

    def number(self, digits: int) -> str:
        """A number of so many digits."""
        return str(self._random.randrange(10 ** (digits - 1), 10**digits))


def lines(text: str, width: int = 64) -> str:
    """The text in lines of a width."""
    return "\n".join(text[at : at + width] for at in range(0, len(text), width))
