"""What the kubelet asks a process, on a port of its own: does it live, is it ready for its part.

    GET /livez     200 as long as the event loop that serves this answers
    GET /readyz    200, or 503 with the reason

Without DRUMROLL_HEALTH_PORT nothing listens: a laptop's processes are asked by `drumroll.probe`. No secret is told.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from drumroll import environment

logger = logging.getLogger(__name__)

WhyNot = Callable[[], str | None]
"""Why a process is not ready, in a few words; None: it is."""

_REQUEST_S = 5.0
_MOST_LINES = 64


@asynccontextmanager
async def answering(why_not_ready: WhyNot, *, port: int | None = None) -> AsyncIterator[int | None]:
    """Answer as long as the context lasts, at `port` or the environment's; yields the port, None where nobody asks.

    Raises:
        OSError: the port cannot be used.
    """
    wanted = environment.health_port() if port is None else port
    if wanted is None:
        yield None
        return

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _answer(reader, writer, why_not_ready)

    # No host: every address of the pod, of both families.
    server = await asyncio.start_server(answer, port=wanted)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


def answer_in_thread(why_not_ready: WhyNot) -> None:
    """The same for a process that computes in its main thread, for as long as it lives."""
    if environment.health_port() is None:
        return

    async def serve() -> None:
        async with answering(why_not_ready):
            await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(serve()), name="health", daemon=True).start()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, why_not_ready: WhyNot) -> None:
    try:
        async with asyncio.timeout(_REQUEST_S):
            request = await reader.readline()
            for _ in range(_MOST_LINES):
                if (await reader.readline()).strip() == b"":
                    break
            status, text = _reply(request, why_not_ready)
            body = f"{text}\n".encode()
            head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
            await writer.drain()
    except (OSError, TimeoutError, ValueError) as error:
        logger.debug("a health check went away: %s", error)
    finally:
        writer.close()


def _reply(request: bytes, why_not_ready: WhyNot) -> tuple[str, str]:
    words = request.split()
    path = words[1].partition(b"?")[0] if len(words) == 3 and words[0] == b"GET" else b""
    if path == b"/livez":
        return "200 OK", "ok"
    if path == b"/readyz":
        reason = why_not_ready()
        return ("200 OK", "ok") if reason is None else ("503 Service Unavailable", reason)
    return "404 Not Found", "/livez and /readyz are here"
