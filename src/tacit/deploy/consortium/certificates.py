"""A consortium's own authority, and the certificates that it signs for servers and callers.

The authority's key signs for public keys that it is shown: private keys stay where they were made.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tacit.deploy.permissions import read_secret, write_secret
from tacit.errors import TacitError

AUTHORITY_DAYS = 1825
CERTIFICATE_DAYS = 365
_SERVER, _CALLER = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


class Pair(NamedTuple):
    """The files of a certificate and of its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates; its own lies at ``certificate``, its key beside it, readable by its owner alone.

    A folder that has an authority keeps it.
    """

    def __init__(self, folder: Path, name: str = "tacit trial authority") -> None:
        self.folder, self.certificate = folder, folder / "ca.pem"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept = folder / "ca.key"
        if not kept.exists():
            write_secret(kept, _private(new_key()))
        found = forms.load_pem_private_key(read_secret(kept), None)
        assert isinstance(found, ec.EllipticCurvePrivateKey)
        self._key = found
        if not self.certificate.exists():
            write_public(self.certificate, self._own(name))
        self._name = x509.load_pem_x509_certificate(self.certificate.read_bytes()).subject

    def _own(self, name: str) -> bytes:
        own, public = _subject(name), self._key.public_key()
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        made = (
            _builder(own, own, public, AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return made.public_bytes(forms.Encoding.PEM)

    def issue(self, name: str, hosts: Sequence[str] = ("localhost", "127.0.0.1")) -> Pair:
        """A certificate with its key, for a server at these hosts and for a caller."""
        pair = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        key = new_key()
        write_public(pair.certificate, self._certified(name, hosts, key.public_key(), [_SERVER, _CALLER]))
        pair.key.unlink(missing_ok=True)
        write_secret(pair.key, _private(key))
        return pair

    def sign(self, request: str, name: str, hosts: Sequence[str], calls: bool) -> str:
        """A certificate in PEM for the key of a request; name and hosts are the authority's word, not the request's.

        It is for a caller or for a server, and neither can pass for the other with it.

        Formal guarantee: whoever made the request has the private key that the certificate is for.
        """
        try:
            asked = x509.load_pem_x509_csr(request.encode())
            public = asked.public_key()
            sound = asked.is_signature_valid and isinstance(public, ec.EllipticCurvePublicKey)
        except ValueError:
            sound = False
        if not sound:
            raise TacitError(f"Expected a certificate request of {name}, signed with its own key; ask for a new reply.")
        assert isinstance(public, ec.EllipticCurvePublicKey)
        return self._certified(name, hosts, public, [_CALLER if calls else _SERVER]).decode()

    def _certified(
        self, name: str, hosts: Sequence[str], public: ec.EllipticCurvePublicKey, uses: Sequence[x509.ObjectIdentifier]
    ) -> bytes:
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        made = (
            _builder(_subject(name), self._name, public, CERTIFICATE_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(authority, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return made.public_bytes(forms.Encoding.PEM)


def new_key() -> ec.EllipticCurvePrivateKey:
    """A fresh key for a certificate."""
    return ec.generate_private_key(ec.SECP256R1())


def requested(path: Path, name: str) -> str:
    """A certificate request in PEM for the key in a file, which is made if it is not there."""
    if not path.exists():
        write_secret(path, _private(new_key()))
    key = forms.load_pem_private_key(read_secret(path), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    asked = x509.CertificateSigningRequestBuilder().subject_name(_subject(name)).sign(key, hashes.SHA256())
    return asked.public_bytes(forms.Encoding.PEM).decode()


def belongs(certificate: str, key: Path) -> bool:
    """Whether a certificate is for the private key in a file."""
    own = forms.load_pem_private_key(read_secret(key), None).public_key()
    form = forms.Encoding.DER, forms.PublicFormat.SubjectPublicKeyInfo
    shown = x509.load_pem_x509_certificate(certificate.encode()).public_key()
    return shown.public_bytes(*form) == own.public_bytes(*form)


def days_left(certificate: str, now: datetime.datetime) -> float:
    """Days until a certificate ends; negative where it has ended, or has not begun."""
    found = x509.load_pem_x509_certificate(certificate.encode())
    if now < found.not_valid_before_utc:
        return (now - found.not_valid_before_utc) / datetime.timedelta(days=1)
    return (found.not_valid_after_utc - now) / datetime.timedelta(days=1)


def write_public(path: Path, text: str | bytes) -> None:
    """Write a file for all to read and for nobody else to change, whatever the umask."""
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(0o644)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
