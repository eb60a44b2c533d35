"""A TCP proxy before a store that loses what it is told to lose: for tests of every part that speaks to one.

It follows the Redis protocol (RESP2) in both directions, so that it can lose the reply to one command that the server
carried out. A lost reply ends the connection, as a reset would. It may speak TLS to its clients, and lead new
connections elsewhere, as a name does after a failover.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from types import TracebackType
from typing import Self

_READ_BYTES = 1 << 18


class Fate(StrEnum):
    """What becomes of a command."""

    PASS = "pass"
    LOSE_REQUEST = "lose_request"
    """It never reaches the server; the connection ends."""
    LOSE_REPLY = "lose_reply"
    """The server carries it out; the connection ends before the reply."""
    STALL = "stall"
    """The server carries it out; the reply, and all after it, never come, and the connection stays open."""


Judge = Callable[[str], Fate]
"""Decides for a command by its name in capitals; called once for each, in order of arrival."""


def every(number: int, *names: str, fate: Fate = Fate.LOSE_REPLY) -> Judge:
    """`fate` for every `number`-th command of these names; all others pass."""
    seen = 0

    def judge(name: str) -> Fate:
        nonlocal seen
        if name not in names:
            return Fate.PASS
        seen += 1
        return fate if seen % number == 0 else Fate.PASS

    return judge


def message_end(data: bytes | bytearray, position: int = 0) -> int | None:
    """Where the RESP2 message that begins at `position` ends; None where it is not complete yet.

    Raises:
        ValueError: not RESP2.
    """
    line_end = data.find(b"\r\n", position)
    if line_end < 0:
        return None
    kind, after = data[position : position + 1], line_end + 2
    if kind in b"+-:":
        return after
    if kind not in (b"$", b"*"):
        raise ValueError(f"not RESP2: {bytes(data[position : position + 16])!r}")
    count = int(data[position + 1 : line_end])
    if kind == b"$":
        end = after + count + 2 if count >= 0 else after
        return end if end <= len(data) else None
    for _ in range(count):
        part = message_end(data, after)
        if part is None:
            return None
        after = part
    return after


def command_name(message: bytes | bytearray) -> str:
    """The name of a command, in capitals."""
    return bytes(message).split(b"\r\n", 3)[2].decode().upper()


class LossyProxy:
    """`async with LossyProxy(store_port, every(3, "XADD")) as proxy: store.connect("rollout", port=proxy.port)`."""

    def __init__(
        self, target_port: int, judge: Judge, *, host: str = "127.0.0.1", context: ssl.SSLContext | None = None
    ) -> None:
        """`context`: of a TLS server; clients must then speak TLS, and the store behind still gets plain bytes."""
        self._host = host
        self.target_port = target_port
        """Where connections lead that are made from now on; open ones stay."""
        self._judge = judge
        self._context = context
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.lost = 0
        """Commands that did not pass."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self._host, 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends, ways = [writer], []
        try:
            up_reader, up_writer = await asyncio.open_connection(self._host, self.target_port)
            ends.append(up_writer)
            fates: deque[Fate] = deque()
            ways = [
                asyncio.ensure_future(self._forward(reader, up_writer, fates)),
                asyncio.ensure_future(self._return(up_reader, writer, fates)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            pass  # nothing listens there: the client sees its connection end
        finally:
            for way in ways:
                way.cancel()
            for end in ends:
                end.transport.abort()
            await asyncio.gather(*ways, *(end.wait_closed() for end in ends), return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fates: deque[Fate]) -> None:
        """Commands to the server, until one is to be lost."""
        buffer = bytearray()
        while chunk := await reader.read(_READ_BYTES):
            buffer += chunk
            while (end := message_end(buffer)) is not None:
                fate = self._judge(command_name(buffer[:end]))
                self.lost += fate is not Fate.PASS
                if fate is Fate.LOSE_REQUEST:
                    return
                fates.append(fate)
                writer.write(buffer[:end])
                del buffer[:end]
            await writer.drain()

    async def _return(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fates: deque[Fate]) -> None:
        """Replies to the client, until one is to be lost."""
        buffer = bytearray()
        while chunk := await reader.read(_READ_BYTES):
            buffer += chunk
            while (end := message_end(buffer)) is not None:
                fate = fates.popleft()
                if fate is Fate.LOSE_REPLY:
                    return
                if fate is Fate.STALL:
                    await asyncio.Event().wait()
                writer.write(buffer[:end])
                del buffer[:end]
            await writer.drain()
