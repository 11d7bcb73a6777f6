"""TLS: from the operator's files, or with a certificate made for this start."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from duplex.config import SELF_SIGNED, ServeConfig

VALID_FOR: Final = datetime.timedelta(days=397)
"""What browsers take at most."""


class BadCertificate(Exception):
    """The files are no certificate and its key."""


def ssl_context(config: ServeConfig) -> ssl.SSLContext | None:
    """The context that the configuration asks for; None for plain HTTP. Raises BadCertificate."""
    tls = config.tls
    if tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    if isinstance(tls, str):
        with tempfile.TemporaryDirectory(prefix="duplex-tls-") as folder:
            return ssl_context(with_files(config, Path(folder)))
    certificate, key = tls
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise BadCertificate(f"tls: {certificate} and {key}: {error}") from error
    return context


def with_files(config: ServeConfig, folder: Path) -> ServeConfig:
    """The configuration, its certificate in files: one that is made now is written to `folder`,
    which is private, for all processes of the server to have the same.
    """
    if config.tls != SELF_SIGNED:
        return config
    pem = folder / "self-signed.pem"
    pem.touch(mode=0o600)
    pem.write_bytes(self_signed(names(config.host)))
    return config.model_copy(update={"tls": (pem, pem)})


def names(host: str) -> list[str]:
    """What a browser on this machine or near it may call this server."""
    own = socket.gethostname()
    found = ["localhost", "127.0.0.1", "::1", own]
    with suppress(OSError):  # a name that nobody has written down has no address
        found += [str(entry[4][0]) for entry in socket.getaddrinfo(own, None)]
    if host not in ("", "0.0.0.0", "::"):
        found.append(host)
    return list(dict.fromkeys(found))


def self_signed(subjects: list[str]) -> bytes:
    """A key and a certificate for these names and addresses, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "duplex media server")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + VALID_FOR - datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([_general_name(subject) for subject in subjects]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + certificate.public_bytes(serialization.Encoding.PEM)


def _general_name(subject: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(subject.partition("%")[0]))
    except ValueError:
        return x509.DNSName(subject)
