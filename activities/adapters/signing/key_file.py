"""Read and create the file that contains a signing key. Only its owner can read the file."""

import os
import stat
import sys
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Final

from loom.activities.start_gate import SigningKey
from loom.domain.core.errors import BadRequest
from loom.extras import PACKAGES, require

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_SETTING: Final = "LOOM_SIGNING_KEY"


class KeyFile:
    """The key in a file. The file is read once, when the key is first needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._key: SigningKey | None = None

    def read(self) -> SigningKey | None:
        """Return the key, or None if the file doesn't exist or can't be opened.

        Raises BadRequest if the file isn't a key, or if other users can read it.
        """
        if self._key is None and (pem := read_private(self._path, _SETTING)) is not None:
            self._key = SigningKey(parsed_key(pem, self._path, _SETTING))
        return self._key

    def created(self) -> SigningKey:
        """Return the key. Create it if there is none.

        Raises OSError if it can't be written, and BadRequest if the file isn't a usable key.
        """
        if (key := self.read()) is not None:
            return key
        pem = new_key()
        fresh = self._path.with_name(f"{self._path.name}.{token_hex(4)}")
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh.touch(mode=0o600)
        try:
            fresh.write_bytes(pem)
            with suppress(FileExistsError):  # another process has just created the key
                os.link(fresh, self._path)
        finally:
            fresh.unlink()
        if (key := self.read()) is None:
            raise _unusable(self._path, _SETTING, "it can't be read")
        return key


def read_private(path: Path, setting: str) -> bytes | None:
    """Return the content of a private key's file, or None if it doesn't exist or can't be opened.

    Raises BadRequest if other users can read it. On Windows, the mode of a file doesn't say so.
    """
    try:
        with path.open("rb") as file:
            mode, pem = os.fstat(file.fileno()).st_mode, file.read()
    except OSError:
        return None
    if sys.platform != "win32" and stat.S_IMODE(mode) & 0o077:
        raise _unusable(path, setting, f"other users can read it: `chmod 600 {path}`")
    return pem


def parsed_key(pem: bytes, path: Path, setting: str) -> "Ed25519PrivateKey":
    """Return the private key in the content of a file. Raises BadRequest if it isn't one, or without `cryptography`."""
    require(f"{setting} ({path})", *PACKAGES["encryption"], field=setting)
    # Slow to import, and only needed if there is a key.
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

    try:
        private = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        private = None
    if not isinstance(private, Ed25519PrivateKey):
        raise _unusable(path, setting, "it isn't an Ed25519 key in PEM format without a password")
    return private


def new_key() -> bytes:
    """Return a new private key in PEM format."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat  # noqa: PLC0415

    return Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _unusable(path: Path, setting: str, why: str) -> BadRequest:
    return BadRequest(f"{setting}: {path} isn't a usable key: {why}", field=setting)
