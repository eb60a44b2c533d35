"""The connection to the store that holds the sample stream and the ledger (a Valkey, or a Redis from 7.2 on).

Credentials come from files and stay out of every message, log line and repr; host and port are shown. Nothing is sent
again behind the caller's back: a failed call raises, and `retrying` repeats what may be repeated.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import redis.asyncio
import redis.exceptions as failures
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider

from drumroll.endpoint import Endpoint
from drumroll.errors import ProtocolError, StoreLost, StoreUnavailable, UserError
from drumroll.job import ResolvedJob

logger = logging.getLogger(__name__)

Redis = redis.asyncio.Redis
T = TypeVar("T")

_SETTINGS = ("appendonly", "appendfsync", "maxmemory-policy")
_UNAVAILABLE = (failures.ConnectionError, failures.TimeoutError, OSError, TimeoutError)
_TEMPORARY_REPLIES = ("LOADING", "READONLY", "MISCONF", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY ")


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
    return connect_to(job.endpoints.store, username=username, password_file=password_file, timeout_s=timeout_s)


def connect_to(url: str, *, username: str, password_file: Path, timeout_s: float = 10.0) -> Redis:
    """A client for a store; each reply may take `timeout_s`. Close it with `await client.aclose()`.

    Raises:
        UserError: the URL is malformed or holds credentials.
    """
    endpoint = Endpoint.parse(url)
    logger.info("store at %s, user %s", endpoint, username)
    return redis.asyncio.Redis(
        host=endpoint.host,
        port=endpoint.port,
        ssl=endpoint.tls,
        credential_provider=FileCredentials(username, password_file),
        socket_timeout=timeout_s,
        socket_connect_timeout=min(timeout_s, 5.0),
        socket_read_size=1 << 18,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        driver_info=None,
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


async def command(client: Redis, *arguments: str | bytes | int) -> Any:
    """Send one command; its reply as the client library parses it.

    Raises:
        as `store_errors`.
    """
    with store_errors(client):
        return await client.execute_command(*arguments)  # type: ignore[no-untyped-call]  # the library's own


async def commands(client: Redis, batch: Sequence[tuple[str | bytes | int, ...]]) -> list[Any]:
    """Send commands in one go over one connection, not as a transaction; their replies in order.

    Raises:
        as `store_errors`, for the first reply that is an error; the others were carried out all the same.
    """
    with store_errors(client):
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


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """What the store says of itself."""

    appendonly: bool | None
    """None: it does not tell."""
    appendfsync: str | None
    eviction: str | None
    """maxmemory-policy."""
    problems: tuple[str, ...]
    """What is wrong with it, with what to set instead; empty: nothing."""


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


def judge(where: str, values: dict[str, str | None]) -> StoreHealth:
    """What follows from a store's settings; pure."""
    appendonly, eviction = values.get("appendonly"), values.get("maxmemory-policy")
    problems = []
    if appendonly == "no":
        problems.append(f"the store at {where} has no append-only file: set `appendonly yes`, or a restart loses all")
    if values.get("appendfsync") == "no":
        problems.append(f"the store at {where} leaves syncing to the system: set `appendfsync always` or `everysec`")
    if eviction is not None and eviction != "noeviction":
        problems.append(f"the store at {where} evicts ({eviction}): set `maxmemory-policy noeviction`")
    known = None if appendonly is None else appendonly == "yes"
    return StoreHealth(known, values.get("appendfsync"), eviction, tuple(problems))


def require_sound(health: StoreHealth) -> None:
    """Refuse a store that would lose what it is given.

    Raises:
        UserError: it evicts or has no append-only file. A store that does not tell passes; its problems are logged.
    """
    if health.appendonly is False or health.eviction not in (None, "noeviction"):
        raise UserError("; ".join(health.problems))
    for problem in health.problems:
        logger.warning("%s", problem)
