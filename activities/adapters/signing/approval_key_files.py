"""Read and create the files of the keys that prove approvals: a private one, and the public ones for workers."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from loom.activities.adapters.signing.key_file import new_key, parsed_key, read_private
from loom.activities.approval_keys import ApprovalKey, ApprovalKeys
from loom.domain.core.errors import BadRequest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

PUBLIC: Final = ".pub"
"""The suffix of the file of a new key's public part."""
_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)


def read_approval_key(path: Path) -> ApprovalKey:
    """Return the private key in this file. Raises BadRequest if there is none, or if other users can read it."""
    if (pem := read_private(path, "LOOM_APPROVAL_KEY")) is None:
        raise BadRequest(
            f"LOOM_APPROVAL_KEY: {path} can't be read: `loom keys approval` creates a key", field="LOOM_APPROVAL_KEY"
        )
    return ApprovalKey(parsed_key(pem, path, "LOOM_APPROVAL_KEY"))


def read_approval_keys(path: Path) -> ApprovalKeys:
    """Return the public keys in this file. Raises BadRequest if there are none, or if it contains anything else."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unusable(path, f"it can't be read ({error.strerror})") from None
    blocks = list(_BLOCK.finditer(content))
    if any(b"PRIVATE" in block[1] for block in blocks):
        raise _unusable(path, "it contains a private key, and workers must have only public ones")
    keys = [_public(block[0], path) for block in blocks]
    if not keys or _BLOCK.sub(b"", content).strip():
        raise _unusable(path, "it must contain only public keys in PEM format, one after the other")
    return ApprovalKeys(keys)


def create_approval_key(path: Path) -> ApprovalKey:
    """Create a private key, and beside it a file with its public key. Raises BadRequest if one of the files exists."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat  # noqa: PLC0415 - slow to import

    pem = new_key()
    private = parsed_key(pem, path, "--file")
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    _written(path, pem, 0o600)
    _written(public_file(path), public, 0o644)
    return ApprovalKey(private)


def public_file(path: Path) -> Path:
    """Return the file of the public key of the private key in `path`."""
    return path.with_name(path.name + PUBLIC)


def _written(path: Path, content: bytes, mode: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    except FileExistsError:
        raise BadRequest(f"{path} exists already: name another file for a new key", field="--file") from None
    except OSError as error:
        raise BadRequest(f"{path} can't be written: {error.strerror}", field="--file") from None


def _public(pem: bytes, path: Path) -> "Ed25519PublicKey":
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - slow to import
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_public_key  # noqa: PLC0415

    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise _unusable(path, "one of its keys isn't a public Ed25519 key")
    return key


def _unusable(path: Path, why: str) -> BadRequest:
    return BadRequest(f"LOOM_APPROVAL_KEYS: {path} isn't usable: {why}", field="LOOM_APPROVAL_KEYS")
