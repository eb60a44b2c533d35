"""Certificates of a job's servers: the same bytes from the same seed, and good enough for the strictest client."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from drumroll_operator.certificates import ServerCertificates, server_certificates, service_names

from drumroll.errors import UserError

CREATED = datetime(2026, 11, 30, 12, 0, 0, 123456, tzinfo=UTC)
SEED = b"s" * 32
NAMES = service_names("small", "team-a", ("scheduler", "store"), "cluster.local")


def made(*, seed: bytes = SEED, names: tuple[str, ...] = NAMES, created: datetime = CREATED) -> ServerCertificates:
    server_certificates.cache_clear()
    return server_certificates(seed, subject="team-a/small", names=names, created=created)


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert made() == made()


def test_another_seed_gives_nothing_that_is_the_same() -> None:
    one, other = made(), made(seed=b"t" * 32)
    assert one.authority != other.authority
    assert one.key != other.key
    first, second = (x509.load_pem_x509_certificate(c.certificate.encode()) for c in (one, other))
    assert first.serial_number != second.serial_number


def test_other_names_are_another_certificate_of_the_same_authority() -> None:
    one, other = made(), made(names=("elsewhere",))
    assert one.authority == other.authority
    first, second = (x509.load_pem_x509_certificate(c.certificate.encode()) for c in (one, other))
    assert first.serial_number != second.serial_number


def test_names_of_services() -> None:
    assert NAMES[:4] == (
        "small-scheduler",
        "small-scheduler.team-a",
        "small-scheduler.team-a.svc",
        "small-scheduler.team-a.svc.cluster.local",
    )
    assert len(NAMES) == 8


def test_they_are_valid_from_just_before_the_job_on() -> None:
    certificate = x509.load_pem_x509_certificate(made().certificate.encode())
    assert certificate.not_valid_before_utc == datetime(2026, 11, 30, 11, 0, 0, tzinfo=UTC)
    assert certificate.not_valid_after_utc - certificate.not_valid_before_utc == timedelta(days=3650)


def test_no_key_is_shown() -> None:
    assert "PRIVATE" not in repr(made())


@pytest.mark.parametrize(("seed", "names"), [(b"short", NAMES), (SEED, ())])
def test_what_makes_no_certificate_is_refused(seed: bytes, names: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="32 bytes or more, and a name"):
        made(seed=seed, names=names)


@pytest.mark.parametrize(
    ("name", "authority_seed", "error"),
    [
        (NAMES[0], SEED, None),
        (NAMES[7], SEED, None),
        ("other-store.team-a.svc", SEED, "Hostname mismatch"),
        (NAMES[0], b"t" * 32, "certificate signature failure|unable to get local issuer certificate"),
    ],
)
async def test_a_strict_client_is_content(name: str, authority_seed: bytes, error: str | None, tmp_path: Path) -> None:
    certificates = made(created=datetime.now(UTC))
    (tmp_path / "tls.pem").write_text(certificates.certificate + certificates.key)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tmp_path / "tls.pem")
    trusting = ssl.create_default_context(cadata=made(seed=authority_seed, created=datetime.now(UTC)).authority)
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=serving)
    async with server:
        port = server.sockets[0].getsockname()[1]
        opened = asyncio.open_connection("127.0.0.1", port, ssl=trusting, server_hostname=name)
        if error is None:
            _, writer = await opened
            writer.close()
        else:
            with pytest.raises(ssl.SSLCertVerificationError, match=error):
                await opened
