"""The connection to the store that holds the sample stream and the ledger (a Valkey, or a Redis from 7.2 on).

Credentials come from files and stay out of every message, log line and repr; host and port are shown. Nothing is sent
again behind the caller's back: a failed call raises, and `retrying` repeats what may be repeated.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

import redis.asyncio
import redis.exceptions as failures
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider

from drumroll.endpoint import Endpoint
from drumroll.errors import ProtocolError, StoreLost, StoreUnavailable, UserError
from drumroll.job import ResolvedJob
from drumroll.store_health import StoreHealth, judge, require_sound
from drumroll.store_tls import client_arguments, explain

__all__ = [
    "FileCredentials",
    "Redis",
    "StoreHealth",
    "address",
    "check",
    "command",
    "commands",
    "connect",
    "connect_to",
    "judge",
    "renew",
    "require_sound",
    "retrying",
    "store_errors",
]

logger = logging.getLogger(__name__)

Redis = redis.asyncio.Redis
T = TypeVar("T")

_SETTINGS = ("appendonly", "appendfsync", "maxmemory-policy")
_UNAVAILABLE = (failures.ConnectionError, failures.TimeoutError, OSError, TimeoutError)
_TEMPORARY_REPLIES = (
    *("LOADING", "READONLY", "MISCONF", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY ", "UNBLOCKED"),
    "WAITAOF cannot be used with replica",
)


class FileCredentials(CredentialProvider):
    """User name and password, the latter read from its file at each new connection; the repr shows neither."""

    def __init__(self, username: str, password_file: Path) -> None:
        self._username = username
        self._password_file = password_file

    def get_credentials(self) -> tuple[str, str]:
        """Read the file.

        Raises:
            UserError: it cannot be read.
        """
        try:
            return self._username, self._password_file.read_text().strip()
        except OSError as error:
            raise UserError(f"the store's password file cannot be read: {error}") from error

    async def get_credentials_async(self) -> tuple[str, str]:
        """As `get_credentials`; the file is small and local."""
        return self.get_credentials()


def connect(job: ResolvedJob, role: str, *, timeout_s: float = 10.0) -> Redis:
    """A client for `role` (which is also the user's name) of the job's store; nothing is sent yet.

    Raises:
        UserError: the job names no password file for the role, or the store's URL is malformed.
    """
    file = job.secrets.store_password_files.get(role)
    if file is None:
        raise UserError(f"the job names no store password file for the role {role!r} (secrets.storePasswordFiles)")
    password_file = Path(file)
    named = password_file.with_name("username")
    external = job.spec.stream.url is not None and named.exists()
    username = named.read_text().strip() if external else role
    ca_file = None if job.secrets.store_ca_file is None else Path(job.secrets.store_ca_file)
    return connect_to(
        job.endpoints.store, username=username, password_file=password_file, ca_file=ca_file, timeout_s=timeout_s
    )


def connect_to(
    url: str, *, username: str, password_file: Path, ca_file: Path | None = None, timeout_s: float = 10.0
) -> Redis:
    """A client for a store; each reply may take `timeout_s`. Close it with `await client.aclose()`.

    `ca_file`: PEM with the authorities that the certificate of a rediss:// store is checked against; default: the
    system's.

    Raises:
        UserError: the URL is malformed or holds credentials, or the authorities cannot be used.
    """
    endpoint = Endpoint.parse(url)
    trust = client_arguments(endpoint, ca_file)
    logger.info("store at %s, user %s", endpoint, username)
    return redis.asyncio.Redis(
        host=endpoint.host,
        port=endpoint.port,
        credential_provider=FileCredentials(username, password_file),
        socket_timeout=timeout_s,
        socket_connect_timeout=min(timeout_s, 5.0),
        socket_read_size=1 << 18,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        driver_info=None,
        **trust,
    )


def address(client: Redis) -> str:
    """host:port, for messages."""
    arguments = client.connection_pool.connection_kwargs
    return f"{arguments.get('host')}:{arguments.get('port')}"


@contextmanager
def store_errors(client: Redis) -> Iterator[None]:
    """Turn the client library's errors into ours.

    Raises:
        StoreUnavailable: no answer, or one that says "not now" (loading, full, a replica): retry.
        UserError: the credentials are refused.
        ProtocolError: the role may not do this, or the call is wrong.
        StoreLost: a key holds something of another type.
    """
    try:
        yield
    except (failures.AuthenticationError, failures.AuthorizationError) as error:
        raise UserError(f"the store at {address(client)} refuses the credentials: {error}") from error
    except failures.InvalidResponse as error:
        raise StoreUnavailable(f"the store at {address(client)} speaks another protocol: {error}") from error
    except _UNAVAILABLE as error:
        raise StoreUnavailable(f"the store at {address(client)} does not answer: {error}") from error
    except failures.OutOfMemoryError as error:
        raise StoreUnavailable(f"the store at {address(client)} is full: {error}") from error
    except failures.ReadOnlyError as error:
        raise StoreUnavailable(f"the store at {address(client)} is read-only: {error}") from error
    except failures.NoPermissionError as error:
        raise ProtocolError(f"the store at {address(client)} does not allow this to the role: {error}") from error
    except failures.ResponseError as error:
        raise _refusal(client, str(error)) from error


def _refusal(client: Redis, text: str) -> Exception:
    where = f"the store at {address(client)}"
    if text.startswith(_TEMPORARY_REPLIES):
        return StoreUnavailable(f"{where} cannot do this now: {text}")
    if text.startswith("WRONGTYPE"):
        return StoreLost(f"{where} holds something else under a key of this job: {text}")
    return ProtocolError(f"{where} refuses a call: {text}")


class _QuietLog:
    """At most one warning a second, however many tasks wait for the same store."""

    def __init__(self) -> None:
        self._last = -1.0

    def __call__(self, message: str, *arguments: object) -> None:
        now = time.monotonic()
        if now - self._last >= 1.0:
            self._last = now
            logger.warning(message, *arguments)


_quiet_warning = _QuietLog()


_proven: "WeakSet[Redis]" = WeakSet()
"""Clients that had an answer: what fails now is no mistake in the job."""


async def renew(client: Redis) -> None:
    """Close the connections that are not in use: the next calls look the store's name up again."""
    await client.connection_pool.disconnect(inuse_connections=False)


@asynccontextmanager
async def _talking(client: Redis) -> AsyncIterator[None]:
    """`store_errors`, and what follows from them: new connections after a failover, the reason of a failed first."""
    try:
        with store_errors(client):
            yield
    except StoreUnavailable as error:
        if _was_demoted(error.__cause__):
            await renew(client)
        elif client not in _proven and (reason := await _explained(client, error)):
            raise UserError(reason) from error
        raise
    _proven.add(client)


def _was_demoted(cause: BaseException | None) -> bool:
    """Whether a server says that it is a replica now: whoever leads has its name, but not its connections."""
    words = ("UNBLOCKED", "WAITAOF cannot be used with replica")
    return isinstance(cause, failures.ReadOnlyError | failures.MasterDownError) or (
        isinstance(cause, failures.ResponseError) and str(cause).startswith(words)
    )


async def _explained(client: Redis, error: StoreUnavailable) -> str | None:
    arguments = client.connection_pool.connection_kwargs
    encrypted = issubclass(client.connection_pool.connection_class, redis.asyncio.SSLConnection)
    endpoint = Endpoint(arguments["host"], arguments["port"], encrypted)
    return await explain(endpoint, error, ca_given=bool(arguments.get("ssl_ca_certs")))


async def command(client: Redis, *arguments: str | bytes | int) -> Any:
    """Send one command; its reply as the client library parses it.

    Raises:
        as `store_errors`; UserError also where the two sides do not agree on encryption.
    """
    async with _talking(client):
        return await client.execute_command(*arguments)  # type: ignore[no-untyped-call]  # the library's own


async def commands(client: Redis, batch: Sequence[tuple[str | bytes | int, ...]]) -> list[Any]:
    """Send commands in one go over one connection, not as a transaction; their replies in order.

    Raises:
        as `command`, for the first reply that is an error; the others were carried out all the same.
    """
    async with _talking(client):
        pipeline = client.pipeline(transaction=False)
        for arguments in batch:
            pipeline.execute_command(*arguments)
        replies = await pipeline.execute(raise_on_error=False)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
    return replies


async def retrying(
    call: Callable[[], Awaitable[T]], *, deadline_s: float, first_pause_s: float = 0.05, longest_pause_s: float = 1.0
) -> T:
    """Repeat `call` while the store is unavailable, for at most `deadline_s`; only for what may be done twice.

    Raises:
        StoreUnavailable: the last one, when the time is up.
    """
    end = time.monotonic() + deadline_s
    pause = first_pause_s
    while True:
        try:
            return await call()
        except StoreUnavailable as error:
            if time.monotonic() + pause > end:
                raise
            _quiet_warning("%s; trying again", error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest_pause_s)


async def check(client: Redis) -> StoreHealth:
    """Ask the store whether it keeps what it is given.

    Raises:
        StoreUnavailable, UserError, ProtocolError: as `store_errors`.
    """
    try:
        settings = {name: await command(client, "CONFIG", "GET", name) for name in _SETTINGS}
    except ProtocolError as error:
        return StoreHealth(None, None, None, (f"its configuration cannot be read: {error}",))
    values = {name: reply[1].decode() if reply else None for name, reply in settings.items()}
    return judge(address(client), values)
