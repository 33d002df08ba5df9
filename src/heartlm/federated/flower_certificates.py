"""A certificate for a federation on one machine: it names localhost and is its own authority.

It is made again for every run and lives as long as it. A federation between machines has certificates of its owners.
"""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from heartlm.errors import needs

DAYS = 7


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for localhost and 127.0.0.1 into `folder`, and its private key, readable by its owner only.

    Returns:
        The PEM files of the certificate, which clients trust, and of the key.

    Raises:
        HeartlmError: the package cryptography is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ModuleNotFoundError:
        raise needs("flower", "cryptography") from None
    private_key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .sign(private_key, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    certificate, key = folder / "server.pem", folder / "server.key"
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key.touch(mode=0o600)
    form = serialization.PrivateFormat.PKCS8
    key.write_bytes(private_key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return certificate, key
