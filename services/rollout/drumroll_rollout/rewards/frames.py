"""Messages between a replica and its reward processes: a length (4 bytes, big endian) and that many bytes of JSON.

Never pickle: a reward process may run code that a model wrote, and what it sends is not trusted.
"""

import json
import os
import select
import struct
import time
from collections.abc import Callable
from typing import Any

MAX_FRAME_BYTES = 256 * 1024 * 1024
_HEAD = struct.Struct(">I")


class FrameError(Exception):
    """The other side sent something that is no frame, or went away (`closed`)."""

    def __init__(self, message: str, *, closed: bool = False) -> None:
        super().__init__(message)
        self.closed = closed


class FrameTimeout(Exception):
    """No whole frame came in time."""


def encode_frame(message: dict[str, Any]) -> bytes:
    """One frame.

    Raises:
        FrameError: the message is over MAX_FRAME_BYTES.
    """
    body = json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode()
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {len(body)} bytes is over {MAX_FRAME_BYTES}")
    return _HEAD.pack(len(body)) + body


def write_frame(fd: int, message: dict[str, Any]) -> None:
    """Write one frame to a blocking pipe.

    Raises:
        FrameError: the reader has gone.
    """
    data = memoryview(encode_frame(message))
    try:
        while data:
            data = data[os.write(fd, data) :]
    except BrokenPipeError as error:
        raise FrameError("the other side has gone", closed=True) from error


def read_frame(
    fd: int, *, timeout_s: float | None = None, tick: Callable[[], None] | None = None, tick_s: float = 0.05
) -> dict[str, Any]:
    """Read one frame from a pipe; while waiting, `tick` is called every `tick_s` seconds and may raise.

    Raises:
        FrameTimeout: it was not there after `timeout_s`.
        FrameError: the writer has gone, or sent no frame.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    poller = select.poll()
    poller.register(fd, select.POLLIN)

    def exactly(count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            _wait(poller, deadline, tick, tick_s)
            part = os.read(fd, min(count - len(data), 1 << 20))
            if not part:
                raise FrameError("the other side has gone", closed=True)
            data += part
        return bytes(data)

    (length,) = _HEAD.unpack(exactly(_HEAD.size))
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {length} bytes is over {MAX_FRAME_BYTES}")
    try:
        message = json.loads(exactly(length))
    except ValueError as error:
        raise FrameError(f"a frame that is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise FrameError(f"a frame that is {type(message).__name__}, not a mapping")
    return message


def _wait(poller: select.poll, deadline: float | None, tick: Callable[[], None] | None, tick_s: float) -> None:
    while True:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise FrameTimeout
        waits = [seconds for seconds in (left, tick_s if tick else None) if seconds is not None]
        if poller.poll(min(waits) * 1000 if waits else None):
            return
        if tick is not None:
            tick()
