"""The stack's encryption keys, in a file that only its owner can read.

    # newest first: the first key encrypts, all of them decrypt
    k-2026-11-25-9f31c0 wMBCnmSs5WwyZ3nD2J6vYTJz5a1y0o3m3cWcY0T6l1k=

Each line has the id of a key, and its 32 random bytes in base64. The id is stored beside everything that the key has
encrypted, so it must never be given to another key.
"""

import base64
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_bytes, token_hex
from typing import Final

from loom.activities.encryption import KEY_ID
from loom.domain.core.errors import BadRequest

BYTES: Final = 32
_HEADER: Final = "# Loom's encryption keys, newest first: the first key encrypts, all of them decrypt.\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class StackKey:
    """A key of the stack. It is never used itself, but only keys that are derived from it for one purpose."""

    id: str
    secret: bytes

    def derived(self, purpose: str) -> bytes:
        """Return the 32 bytes of the key for this purpose."""
        # Importing the library takes time and 6 MB, and a worker without keys doesn't need it.
        from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

        return HKDF(algorithm=SHA256(), length=BYTES, salt=None, info=f"loom:{purpose}".encode()).derive(self.secret)

    @property
    def line(self) -> str:
        """The key's line in the file."""
        return f"{self.id} {base64.b64encode(self.secret).decode()}\n"


class KeyRing:
    """The keys in a file. The file is read again if a key is missing that somebody may have added since."""

    def __init__(self, path: Path) -> None:
        """Raises BadRequest if the file isn't usable."""
        self._path = path
        self._read()

    @property
    def newest(self) -> StackKey:
        """The key that encrypts."""
        return next(iter(self._keys.values()))

    def find(self, name: str) -> StackKey | None:
        """Return the key with this id, or None. Raises BadRequest if the file has become unusable."""
        if name not in self._keys and _version(self._path) != self._version:
            self._read()
        return self._keys.get(name)

    def _read(self) -> None:
        self._version = _version(self._path)
        self._keys = {key.id: key for key in read_keys(self._path)}


def new_key() -> StackKey:
    """Return a new random key, whose id begins with the date."""
    return StackKey(id=f"k-{datetime.now(UTC):%Y-%m-%d}-{token_hex(3)}", secret=token_bytes(BYTES))


def read_keys(path: Path) -> Sequence[StackKey]:
    """Return the keys in the file, newest first.

    Raises BadRequest if the file can't be read, if other users can read it, or if it doesn't contain valid keys.
    """
    try:
        with path.open("rb") as file:
            mode, data = os.fstat(file.fileno()).st_mode, file.read()
    except OSError as error:
        raise _unusable(path, f"it can't be read ({error.strerror}): `loom keys new` creates it") from None
    if stat.S_IMODE(mode) & 0o077:
        raise _unusable(path, f"other users can read it: `chmod 600 {path}`")
    lines = [line.strip() for line in data.decode("utf-8", "replace").splitlines()]
    keys = [_key(path, number, line) for number, line in enumerate(lines, 1) if line and not line.startswith("#")]
    if not keys:
        raise _unusable(path, "it contains no key: `loom keys rotate` adds one")
    twice = {key.id for key in keys if sum(other.id == key.id for other in keys) > 1}
    if twice:
        raise _unusable(path, f"it contains more than one key with the id {min(twice)}")
    return keys


def write_keys(path: Path, keys: Sequence[StackKey]) -> None:
    """Replace the file at once, readable only for its owner. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(f"{path.name}.{token_hex(4)}")
    fresh.touch(mode=0o600)
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(_HEADER + "".join(key.line for key in keys))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def _version(path: Path) -> tuple[int, int]:
    """Return what changes whenever the file is replaced or written to."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_ino


def _key(path: Path, number: int, line: str) -> StackKey:
    name, _, encoded = line.partition(" ")
    try:
        secret = base64.b64decode(encoded.strip(), validate=True)
    except ValueError:
        secret = b""
    if not KEY_ID.fullmatch(name) or len(secret) != BYTES:
        raise _unusable(path, f"line {number} must have a key's id, a space, and {BYTES} bytes in base64")
    return StackKey(id=name, secret=secret)


def _unusable(path: Path, why: str) -> BadRequest:
    return BadRequest(f"LOOM_ENCRYPTION_KEYS: {path} isn't usable: {why}", field="LOOM_ENCRYPTION_KEYS")
