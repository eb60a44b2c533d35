"""How gRPC connections are made and accepted: plain, or encrypted with the certificates that job.json names.

Where there is an authority, the other side must show a certificate of it for the expected name; nothing turns that
check off.
"""

from pathlib import Path

import grpc

from drumroll.errors import JobError
from drumroll.job import ResolvedJob

MAX_MESSAGE_BYTES = 64 * 1024 * 1024

ChannelOptions = tuple[tuple[str, int], ...]

CHANNEL_OPTIONS: ChannelOptions = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A restarted scheduler is found within a second, a silent host within fifteen.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_retries", 0),
    # Two clients in one process must not share a connection that one of them has found to be dead.
    ("grpc.use_local_subchannel_pool", 1),
)

SERVER_OPTIONS: ChannelOptions = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # Two schedulers must never share a port: the kernel would deal calls to a stopped one.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
)


def open_channel(
    address: str, *, authorities: bytes | None = None, name: str = "", options: ChannelOptions = CHANNEL_OPTIONS
) -> grpc.aio.Channel:
    """A connection to host:port; it is made at the first call.

    `authorities`: PEM; encrypted where given. `name`: the name that the certificate must hold, where it is not the
    address's own.
    """
    if authorities is None:
        return grpc.aio.insecure_channel(address, options=options)
    named = (("grpc.ssl_target_name_override", name), ("grpc.default_authority", name)) if name else ()
    credentials = grpc.ssl_channel_credentials(root_certificates=authorities)
    return grpc.aio.secure_channel(address, credentials, options=(*options, *named))


def listen(server: grpc.aio.Server, address: str, identity: tuple[bytes, bytes] | None) -> int:
    """Let a server accept calls at host:port; the port. `identity`: certificate and private key, PEM; None: plain.

    Raises:
        RuntimeError: the address cannot be had.
    """
    if identity is None:
        return server.add_insecure_port(address)
    certificate, key = identity
    return server.add_secure_port(address, grpc.ssl_server_credentials([(key, certificate)]))


def host_of(address: str) -> str:
    """The host of host:port."""
    return address.rpartition(":")[0].strip("[]")


def read_authorities(job: ResolvedJob) -> bytes | None:
    """PEM of the authority of the job's own servers; None: they are not encrypted.

    Raises:
        JobError: the file cannot be read.
    """
    path = job.secrets.tls_ca_file
    return None if path is None else _read("tlsCaFile", path)


def read_identity(job: ResolvedJob) -> tuple[bytes, bytes] | None:
    """Certificate and private key of the job's own servers, PEM; None: they are not encrypted.

    Raises:
        JobError: one of the two is missing or cannot be read.
    """
    certificate, key = job.secrets.tls_cert_file, job.secrets.tls_key_file
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise JobError("job.json: secrets.tlsCertFile and secrets.tlsKeyFile go together: write both, or neither")
    return _read("tlsCertFile", certificate), _read("tlsKeyFile", key)


def _read(field: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise JobError(f"job.json: secrets.{field} cannot be read: {error}") from error
