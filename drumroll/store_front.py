"""TLS in front of the embedded store, whose program speaks none: this process listens, the store has a Unix socket.

    client -- TLS --> this process -- /tmp/.../valkey.sock --> Valkey, its child

There is no plain port. Bytes are passed on as they come; when the store ends, this process ends with its code.
"""

import asyncio
import ctypes
import logging
import signal
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

_PIECE = 1 << 18
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Front:
    """Where it listens, as whom, and in front of what."""

    bind: str
    """Address; *: all, of both families."""
    port: int
    certificate: Path
    private_key: Path
    socket: Path
    """Of the store."""

    def context(self) -> ssl.SSLContext:
        """Raises:
        OSError, ssl.SSLError: certificate and key cannot be read, or do not belong together.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.private_key)
        return context


async def run(front: Front, command: Sequence[str]) -> int:
    """Start the store and stand in front of it until it ends; its exit code. SIGTERM and SIGINT are passed on to it.

    Raises:
        OSError, ssl.SSLError: the certificate cannot be used, or the address is taken.
    """
    context = front.context()
    store = await asyncio.create_subprocess_exec(*command, preexec_fn=_end_with_parent)
    try:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, store.send_signal, number)

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await _pass_on(front.socket, reader, writer)

        host = None if front.bind == "*" else front.bind
        server = await asyncio.start_server(pass_on, host, front.port, ssl=context, limit=_PIECE)
        code = await store.wait()
        server.close()
        return 128 - code if code < 0 else code
    finally:
        if store.returncode is None:
            store.kill()
            await store.wait()


async def _pass_on(path: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection, until either side ends it."""
    try:
        store_reader, store_writer = await asyncio.open_unix_connection(path, limit=_PIECE)
    except OSError as error:
        logger.warning("the store does not take connections yet: %s", error.strerror)
        writer.close()
        return
    both = [asyncio.create_task(_copy(reader, store_writer)), asyncio.create_task(_copy(store_reader, writer))]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    for task in both:
        task.cancel()
    await asyncio.gather(*both, return_exceptions=True)
    writer.close()
    store_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_PIECE):
            writer.write(data)
            await writer.drain()
    except (OSError, ssl.SSLError) as error:
        logger.debug("a connection broke: %s", error)


def _end_with_parent() -> None:
    """In the child: be killed when this process is."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
