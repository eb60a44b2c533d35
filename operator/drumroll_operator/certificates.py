"""Certificates of a job's own servers, derived from a seed: the same bytes from every operator, at every time.

One authority for each job, and one certificate for its scheduler and its store. Keys come from the seed by HMAC, serial
numbers too; signatures are deterministic (RFC 6979). Nothing here reads a clock.
"""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from drumroll.errors import UserError

VALID_DAYS = 3650
BEFOREHAND = timedelta(hours=1)
"""How long before the job's creation they are valid already: clocks differ."""
LEAST_SEED_BYTES = 32
_LONGEST_NAME = 64
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of the curve P-256."""


@dataclass(frozen=True, slots=True)
class ServerCertificates:
    """PEM texts."""

    authority: str
    """Certificate that clients trust: ca.crt."""
    certificate: str
    """Of the servers: tls.crt."""
    key: str = field(repr=False)
    """Private key of the servers: tls.key."""


@lru_cache(maxsize=4096)
def server_certificates(seed: bytes, *, subject: str, names: tuple[str, ...], created: datetime) -> ServerCertificates:
    """The certificates of a job.

    `seed`: secret, of this job alone, 32 bytes or more. `subject`: name of the authority, for people. `names`: DNS
    names of the servers. `created`: when the job was made; they are valid for ten years from then.

    Raises:
        UserError: the seed is too short, or there is no name.
    """
    if len(seed) < LEAST_SEED_BYTES or not names:
        raise UserError(f"certificates need a seed of {LEAST_SEED_BYTES} bytes or more, and a name")
    begin = created.astimezone(UTC).replace(microsecond=0) - BEFOREHAND
    authority_key, server_key = _key(seed, "authority"), _key(seed, "server")
    issuer = _name(f"{subject} authority")
    authority = _authority(seed, issuer, authority_key, begin)
    server = _server(seed, names, issuer, server_key, authority_key, begin)
    return ServerCertificates(_pem(authority), _pem(server), _key_pem(server_key))


def service_names(job: str, namespace: str, services: Sequence[str], domain: str) -> tuple[str, ...]:
    """The names under which a job's Services are called: `<job>-<service>`, from the short one to the full one."""
    found = []
    for service in services:
        short = f"{job}-{service}"
        found += [short, f"{short}.{namespace}", f"{short}.{namespace}.svc", f"{short}.{namespace}.svc.{domain}"]
    return tuple(found)


def _authority(seed: bytes, name: x509.Name, key: ec.EllipticCurvePrivateKey, begin: datetime) -> x509.Certificate:
    builder = (
        _builder(seed, "authority", name, name, key.public_key(), begin)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return builder.sign(key, hashes.SHA256(), ecdsa_deterministic=True)


def _server(
    seed: bytes,
    names: tuple[str, ...],
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    authority_key: ec.EllipticCurvePrivateKey,
    begin: datetime,
) -> x509.Certificate:
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    # The serial number covers the names: another certificate never has the number of this one.
    builder = (
        _builder(seed, "\n".join(("server", *names)), _name(names[0]), issuer, key.public_key(), begin)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
    )
    return builder.sign(authority_key, hashes.SHA256(), ecdsa_deterministic=True)


def _builder(
    seed: bytes, what: str, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begin: datetime
) -> x509.CertificateBuilder:
    serial = int.from_bytes(_derived(seed, f"serial/{what}")[:19]) | 1
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:_LONGEST_NAME])])


def _derived(seed: bytes, what: str) -> bytes:
    return hmac.new(seed, what.encode(), hashlib.sha256).digest()


def _key(seed: bytes, what: str) -> ec.EllipticCurvePrivateKey:
    # 512 bits, so that the remainder favours no key.
    wide = _derived(seed, f"key/{what}/0") + _derived(seed, f"key/{what}/1")
    return ec.derive_private_key(int.from_bytes(wide) % (_ORDER - 1) + 1, ec.SECP256R1())


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
