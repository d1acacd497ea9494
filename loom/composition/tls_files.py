"""Check the certificate files that settings name: client certificates, their keys, and authorities.

Each check raises ValueError with a message that names the file. Without these checks, a wrong file would only show as
a failed handshake, or as a worker that waits for its server. That is the case in a client without the package
`cryptography`, which only checks that it can read the files. Connections don't need the package.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from loom.extras import is_installed

POSTGRES_FILES: Final = ("sslcert", "sslkey", "sslrootcert")
"""The parameters of a Postgres URL that name the certificate, its key and the authority. See libpq's documentation."""
REDIS_FILES: Final = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs")
"""The same parameters of a Redis URL."""


def check_certificates(path: Path) -> Path:
    """Return the path of a PEM file whose first certificate is valid now."""
    content = _content(path)
    if not is_installed("cryptography"):
        return path
    from cryptography import x509  # noqa: PLC0415 - takes 50 ms, and most set-ups have no certificates of their own

    try:
        first = x509.load_pem_x509_certificates(content)[0]
    except ValueError:
        raise ValueError(f"{path} contains no certificate in PEM format") from None
    now = datetime.now(UTC)
    if first.not_valid_after_utc < now:
        raise ValueError(f"the certificate in {path} expired on {first.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
    if first.not_valid_before_utc > now:
        raise ValueError(f"the certificate in {path} is valid from {first.not_valid_before_utc:%Y-%m-%d %H:%M} UTC")
    return path


def check_key(path: Path, certificate: Path) -> Path:
    """Return the path of a PEM file that contains the private key of a certificate."""
    content = _content(path)
    if not is_installed("cryptography"):
        return path
    from cryptography import x509  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

    try:
        key = load_pem_private_key(content, password=None)
    except TypeError:
        raise ValueError(f"the key in {path} is encrypted: store it without a passphrase") from None
    except ValueError:
        raise ValueError(f"{path} contains no private key in PEM format") from None
    if x509.load_pem_x509_certificates(_content(certificate))[0].public_key() != key.public_key():
        raise ValueError(f"the key in {path} doesn't belong to the certificate in {certificate}")
    return path


def check_files_of_url(url: str, names: tuple[str, str, str]) -> None:
    """Check the files that a server's URL names in its query."""
    given: Mapping[str, str] = dict(parse_qsl(urlsplit(url).query))
    certificate, key, authority = (given.get(name) for name in names)
    if (certificate is None) != (key is None):
        raise ValueError(f"must name both {names[0]} and {names[1]}, or neither")
    if certificate is not None and key is not None:
        check_key(Path(key), check_certificates(Path(certificate)))
    if authority is not None and authority != "system":
        check_certificates(Path(authority))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}") from None
