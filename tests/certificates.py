"""Certificates for servers of a test's own."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """A certificate authority of the test's own, and certificates for names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "authority.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._root = self._signed("Test CA", self._key.public_key(), x509.BasicConstraints(ca=True, path_length=None))
        self.path.write_bytes(self._root.public_bytes(serialization.Encoding.PEM))
        self.trusted = ssl.create_default_context(
            cadata=self._root.public_bytes(serialization.Encoding.PEM).decode("ascii")
        )

    def server(self, host: str) -> ssl.SSLContext:
        """What a server for this host uses."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.certificate(host))
        return context

    def certificate(self, name: str, *, days: float = 1) -> tuple[Path, Path]:
        """The files of a certificate for a host or a client, which is valid for that many days, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        signed = self._signed(name, key.public_key(), names, days=days)
        certificate, private = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        private.touch(mode=0o600)  # libpq refuses a key that others may read
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate, private

    def _signed(
        self, name: str, key: ec.EllipticCurvePublicKey, extension: x509.ExtensionType, *, days: float = 1
    ) -> x509.Certificate:
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test CA")])
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        )
        return builder.sign(self._key, hashes.SHA256())
