"""Encrypted connections to a store: what they trust, and why one fails, told as what to write instead.

Certificates are always checked, and so are the names in them.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drumroll.endpoint import Endpoint
from drumroll.errors import UserError

_PROBE_S = 2.0
_NAME_CODES = (62, 63, 64)
"""OpenSSL's codes for a certificate of another host, mail address or IP address."""
_EXPIRED = 10


def client_arguments(endpoint: Endpoint, ca_file: Path | None) -> dict[str, Any]:
    """What the client library is told; `ca_file`: PEM, default: the system's authorities.

    Raises:
        UserError: the file holds no certificate, or it is of no use because the address is not an encrypted one.
    """
    if not endpoint.tls and ca_file is None:
        return {"ssl": False}
    checked = {"ssl": True, "ssl_cert_reqs": "required", "ssl_check_hostname": True}
    if ca_file is None:
        return checked
    if not endpoint.tls:
        raise UserError(
            f"the store at {endpoint} is not encrypted, yet a certificate authority is given: write rediss:// in "
            "stream.url, or leave caSecretRef out"
        )
    try:
        ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise UserError(
            f"{ca_file} holds no certificate authority for the store at {endpoint} ({error}): the Secret of "
            "stream.caSecretRef needs a key ca.crt with certificates in PEM"
        ) from error
    return checked | {"ssl_ca_certs": str(ca_file)}


async def explain(endpoint: Endpoint, error: BaseException, *, ca_given: bool) -> str | None:
    """Why a connection cannot be made, as what to write instead; None: it is not about encryption.

    Looks at the error, and where that does not say it, at what the other side speaks; sends it no secret.
    """
    chain = list(_chain(error))
    for cause in chain:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _untrusted(endpoint, cause, ca_given=ca_given)
    if any(isinstance(cause, ConnectionRefusedError | socket.gaierror) for cause in chain):
        return None
    if endpoint.tls and await _speaks_plain(endpoint):
        return f"the store at {endpoint} does not speak TLS: write redis:// in stream.url, or have it encrypt"
    if not endpoint.tls and await _speaks_tls(endpoint):
        return (
            f"the store at {endpoint} speaks TLS: write rediss:// in stream.url, and the Secret with its authority's "
            "ca.crt as stream.caSecretRef"
        )
    return None


def _untrusted(endpoint: Endpoint, error: ssl.SSLCertVerificationError, *, ca_given: bool) -> str:
    what = f"the store at {endpoint} shows a certificate"
    if error.verify_code in _NAME_CODES:
        return f"{what} of another host ({error.verify_message}): write in stream.url a name that the certificate holds"
    if error.verify_code == _EXPIRED:
        return f"{what} that has expired: give the store a new one"
    if ca_given:
        return (
            f"{what} that is not of the authorities in stream.caSecretRef ({error.verify_message}): put its "
            "authority's certificate into that Secret as ca.crt"
        )
    return (
        f"{what} of an authority that is not known here ({error.verify_message}): put the authority's certificate as "
        "ca.crt into a Secret and write its name as stream.caSecretRef"
    )


async def _speaks_tls(endpoint: Endpoint) -> bool:
    """Whether a handshake gets as far as a certificate, trusted or not."""
    try:
        async with asyncio.timeout(_PROBE_S):
            _, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=ssl.create_default_context())
    except ssl.SSLCertVerificationError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def _speaks_plain(endpoint: Endpoint) -> bool:
    """Whether a PING is answered as a Redis answers it, be it with a refusal."""
    try:
        async with asyncio.timeout(_PROBE_S):
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
            try:
                writer.write(b"PING\r\n")
                return await reader.read(1) in (b"+", b"-")
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError):
        return False


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
